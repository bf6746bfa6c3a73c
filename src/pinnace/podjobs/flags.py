"""sbatch's options as users write them into annotations: parsed as sbatch would, refused where they would do harm.

Who writes an annotation need not be who owns the cluster, and sbatch runs as the owner. Some options take the name of a
file in place of a value, and sbatch's complaint about that file shows what is in it. So a pod's options name no file.
"""

from __future__ import annotations

import shlex

from pinnace.errors import UsageError
from pinnace.slurm.commands import checked_text

# Long name: short name, and whether it takes a value (None: it may). What is not here is not passed on.
ALLOWED: dict[str, tuple[str, bool | None]] = {
    "account": ("A", True),
    "acctg-freq": ("", True),
    "begin": ("b", True),
    "cluster-constraint": ("", True),
    "constraint": ("C", True),
    "contiguous": ("", False),
    "core-spec": ("S", True),
    "cores-per-socket": ("", True),
    "cpu-freq": ("", True),
    "cpus-per-gpu": ("", True),
    "cpus-per-task": ("c", True),
    "deadline": ("", True),
    "delay-boot": ("", True),
    "dependency": ("d", True),
    "distribution": ("m", True),
    "exclude": ("x", True),
    "exclusive": ("", None),
    "extra-node-info": ("B", True),
    "gpu-bind": ("", True),
    "gpu-freq": ("", True),
    "gpus": ("G", True),
    "gpus-per-node": ("", True),
    "gpus-per-socket": ("", True),
    "gpus-per-task": ("", True),
    "gres": ("", True),
    "gres-flags": ("", True),
    "hint": ("", True),
    "hold": ("H", False),
    "job-name": ("J", True),
    "licenses": ("L", True),
    "mail-type": ("", True),
    "mail-user": ("", True),
    "mcs-label": ("", True),
    "mem": ("", True),
    "mem-bind": ("", True),
    "mem-per-cpu": ("", True),
    "mem-per-gpu": ("", True),
    "mincpus": ("", True),
    "network": ("", True),
    "nice": ("", None),
    "nodelist": ("w", True),
    "nodes": ("N", True),
    "ntasks": ("n", True),
    "ntasks-per-core": ("", True),
    "ntasks-per-gpu": ("", True),
    "ntasks-per-node": ("", True),
    "ntasks-per-socket": ("", True),
    "overcommit": ("O", False),
    "oversubscribe": ("s", False),
    "partition": ("p", True),
    "power": ("", True),
    "prefer": ("", True),
    "priority": ("", True),
    "qos": ("q", True),
    "reboot": ("", False),
    "reservation": ("", True),
    "sockets-per-node": ("", True),
    "spread-job": ("", False),
    "switches": ("", True),
    "thread-spec": ("", True),
    "threads-per-core": ("", True),
    "time": ("t", True),
    "time-min": ("", True),
    "tmp": ("", True),
    "use-min-nodes": ("", False),
    "wckey": ("", True),
}
# What a pod may say in a restricted cluster: what it needs. Whose account pays, before whom it runs, whom Slurm writes
# to and what is done before it begins is its user's to say; and several hosts are of no use where there are no ranks.
NEEDS = frozenset(
    {
        "constraint",
        "contiguous",
        "cores-per-socket",
        "cpus-per-gpu",
        "cpus-per-task",
        "gpus",
        "gpus-per-node",
        "gres",
        "hint",
        "job-name",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "mincpus",
        "partition",
        "prefer",
        "sockets-per-node",
        "threads-per-core",
        "time",
        "time-min",
        "tmp",
    }
)
_NEEDED = "the node that serves the pod needs its own"
_FILE = "sbatch would open files of the cluster's owner"
REFUSED = {
    "array": "a pod is one job",
    "batch": _NEEDED,
    "bb": _FILE,
    "bbf": _FILE,
    "chdir": _NEEDED,
    "clusters": "a node of another Slurm cluster cannot reach this one's directory for sure",
    "comment": "the comment says whose job it is",
    "container": "the pod names its image",
    "error": _NEEDED,
    "export": _NEEDED,
    "export-file": _NEEDED,
    "get-user-env": _NEEDED,
    "gid": "a pod's job runs as the cluster's user",
    "ignore-pbs": _NEEDED,
    "input": _NEEDED,
    "kill-on-invalid-dep": "a job that can never run has to be seen",
    "no-kill": _NEEDED,
    "nodefile": _FILE,
    "no-requeue": "this is always so",
    "open-mode": _NEEDED,
    "output": _NEEDED,
    "parsable": _NEEDED,
    "propagate": _NEEDED,
    "quiet": _NEEDED,
    "requeue": "Kubernetes makes a new pod where one is wanted",
    "signal": _NEEDED,
    "test-only": "the job would never run",
    "uid": "a pod's job runs as the cluster's user",
    "wait": _NEEDED,
    "wait-all-nodes": _NEEDED,
    "wrap": "a pod's job runs the pod",
}
_SHORT = {short: name for name, (short, _) in ALLOWED.items() if short}
_REFUSED_SHORT = {
    "a": "array",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "i": "input",
    "k": "no-kill",
    "M": "clusters",
    "o": "output",
    "Q": "quiet",
    "W": "wait",
}

# Where a slash has a meaning of its own: dates as in 12/24/26. A name is only ever shown.
WITH_SLASH = {"begin", "deadline", "job-name"}

Options = dict[str, str | None]  # long name without dashes; None for what takes no value


def parse(text: str, *, also: frozenset[str] = frozenset(), by_owner: bool = False) -> Options:
    """The options in a line of flags. ``also`` are options of the site's own, whose values follow a ``=``.

    ``by_owner``: the cluster's owner has written them, who may let sbatch read any file.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the flags {text!r} cannot be read: {error}") from error
    found: Options = {}
    while words:
        name, value = _split(words.pop(0))
        if name in REFUSED:
            raise UsageError(f"--{name} is not for pods: {REFUSED[name]}")
        if name not in also:
            takes = ALLOWED[name][1] if name in ALLOWED else _unknown(name)
            if takes and value is None:
                if not words:
                    raise UsageError(f"--{name} lacks its value")
                value = words.pop(0)
            if takes is False and value is not None:
                raise UsageError(f"--{name} takes no value")
        found[name] = value
    return checked(found, may_name_files=frozenset(found) if by_owner else also)


def checked(options: Options, *, may_name_files: frozenset[str] = frozenset()) -> Options:
    """The same options, if none of their values has control characters, or names a file without being allowed to."""
    for name, value in options.items():
        checked_text(f"the value of --{name}", value or "")
        if "/" in (value or "") and name not in WITH_SLASH and name not in may_name_files:
            raise UsageError(f"--{name}={value} is not for pods: {_FILE}")
    return options


def _split(word: str) -> tuple[str, str | None]:
    """The long name of an option, and the value that is written together with it."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value if equals else None
    if word.startswith("-") and len(word) > 1:
        letter = word[1]
        return _SHORT.get(letter) or _REFUSED_SHORT.get(letter) or f"-{letter}", word[2:] or None
    raise UsageError(f"{word!r} in the flags is no option")


def _unknown(name: str) -> bool:
    raise UsageError(f"--{name} is no option that pinnace knows".replace("---", "-"))


def argv(options: Options) -> list[str]:
    """The other way round."""
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]


def require_needs(options: Options, *, also: frozenset[str]) -> Options:
    """The same options, if a pod of a restricted cluster may ask for them. ``also`` are those that the user allows."""
    for name in options:
        if name not in NEEDS | also:
            raise UsageError(
                f"--{name} is not for pods of a restricted cluster",
                hint="The cluster's user can allow it before the start: `flags` in pods.toml.",
            )
    return options


# Of two that say the same in different ways, the later counts alone.
_GROUPS = (
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
    ("exclusive", "oversubscribe"),
)


def merge(*layers: Options) -> Options:
    """Later layers override earlier ones."""
    merged: Options = {}
    for layer in layers:
        for group in _GROUPS:
            if any(name in layer for name in group):
                merged = {name: value for name, value in merged.items() if name not in group}
        merged |= layer
    return merged
