"""Which options of sbatch and srun somebody may give, for each use, and why not the others.

Who writes an annotation or a SlurmJob need not be who owns the cluster or runs the bridge, and sbatch runs as the
latter. Some options take the name of a file in place of a value, and sbatch's complaint about that file shows what is
in it. So tenants' options name no file of the host where sbatch runs.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.errors import UsageError
from pinnace.slurm.options import SBATCH, SRUN, Argument, Messages, SbatchOptions, Use, argv, parse, read
from pinnace.validation import plain, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Which resources a job or a step needs, and how they are used: for everybody.
RESOURCES = _names("""
    acctg-freq constraint contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task distribution exclude
    exclusive extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
    job-name licenses mem mem-bind mem-per-cpu mem-per-gpu network nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket overcommit oversubscribe sockets-per-node spread-job switches thread-spec
    threads-per-core time use-min-nodes
""")
# When and for whom a job runs: for whoever submits one.
SCHEDULING = _names("""
    account begin deadline delay-boot dependency hold mail-type mail-user mcs-label mincpus nice partition power prefer
    priority qos reservation time-min tmp wckey
""")

# --- pods: annotations, and the options of the cluster's owner for all pods ------------------------------------------

_NEEDED = "the node that serves the pod needs its own"
_FILE = "sbatch would open files of the cluster's owner"
POD = Use(
    table=SBATCH,
    allowed=RESOURCES | SCHEDULING | {"cluster-constraint", "reboot"},
    refused={
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
    },
    messages=Messages(
        refused="--{name} is not for pods: {reason}",
        unknown="{written} is no option that pinnace knows",
        lacks_value="--{name} lacks its value",
        takes_no_value="--{name} takes no value",
        no_option="{arg} in the flags is no option",
    ),
)
# What a pod may say in a restricted cluster: what it needs. Whose account pays, before whom it runs, whom Slurm writes
# to and what is done before it begins is its user's to say; and several hosts are of no use where there are no ranks.
RESTRICTED_POD = _names("""
    constraint contiguous cores-per-socket cpus-per-gpu cpus-per-task gpus gpus-per-node gres hint job-name mem
    mem-per-cpu mem-per-gpu mincpus partition prefer sockets-per-node threads-per-core time time-min tmp
""")
# Where a slash has a meaning of its own: dates as in 12/24/26. A name is only ever shown.
WITH_SLASH = frozenset({"begin", "deadline", "job-name"})
LONGEST_ANNOTATION = 256 << 10  # bytes of an object's annotations, as Kubernetes has it


def pod_options(text: str, *, also: frozenset[str] = frozenset()) -> SbatchOptions:
    """The options in an annotation. ``also`` are options of the site's own, whose values follow a ``=``."""
    try:
        args = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the flags {text!r} cannot be read: {error}") from error
    return check_pod_values(parse(args, POD, also=also), may_name_files=also)


def owner_options(args: Iterable[str], *, also: frozenset[str] = frozenset()) -> SbatchOptions:
    """Options for pods and nodes from the cluster's owner, who may let sbatch read any file."""
    found = parse(args, POD, also=also)
    return check_pod_values(found, may_name_files=frozenset(found))


def check_pod_values(options: SbatchOptions, *, may_name_files: frozenset[str] = frozenset()) -> SbatchOptions:
    """The same options, if none of their values has control characters, or names a file without being allowed to."""
    for name, value in options.items():
        plain(f"the value of --{name}", value or "", most=LONGEST_ANNOTATION)
        if "/" in (value or "") and name not in WITH_SLASH and name not in may_name_files:
            raise UsageError(f"--{name}={value} is not for pods: {_FILE}")
    return options


def check_restricted(options: SbatchOptions, *, also: frozenset[str]) -> SbatchOptions:
    """The same options, if a pod of a restricted cluster may ask for them. ``also`` are those that the user allows."""
    for name in options:
        if name not in RESTRICTED_POD | also:
            raise UsageError(
                f"--{name} is not for pods of a restricted cluster",
                hint="The cluster's user can allow it before the start: `flags` in pods.toml.",
            )
    return options


# --- srun inside a container: what is Slurm's own business is passed on, what concerns the host is refused -----------

_STREAMS = "it would be a file of the host's; redirect the streams of srun itself"
_HOST = "it would run on the host"
RANKS = Use(
    table=SRUN,
    allowed=RESOURCES
    | _names("""
        accel-bind chdir cpu-bind disable-status exact external-launcher immediate input kill-on-bad-exit label mpi
        msg-timeout overlap profile pty quiet relative resv-ports slurmd-debug threads unbuffered verbose wait whole
    """),
    refused={
        "bcast": "the image is there already",
        "container": "ranks run in the pod's image",
        "epilog": _HOST,
        "error": _STREAMS,
        "export": "ranks have srun's own environment",
        "gid": "ranks run as you",
        "jobid": "ranks run in the pod's own job",
        "multi-prog": "let the program look at SLURM_PROCID",
        "output": _STREAMS,
        "prolog": _HOST,
        "task-epilog": _HOST,
        "task-prolog": _HOST,
        "uid": "ranks run as you",
    },
    messages=Messages(
        refused="srun's {written} is not for pods: {reason}",
        unknown="srun's {written} is not known here",
        lacks_value="srun's {written} lacks its value",
        takes_no_value="srun's --{name} takes no value",
        no_option="srun's {arg} is no option",
    ),
    grouped_letters=True,
    before_command=True,
)


@dataclass(frozen=True, kw_only=True)
class SrunCall:
    """What srun was called with: options by their long names, and the program."""

    options: tuple[tuple[str, str | None], ...]
    command: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.options}

    @property
    def directory(self) -> str | None:
        return next((value for name, value in self.options if name == "chdir"), None)

    def argv(self) -> list[str]:
        """For Slurm's own srun. The directory is one of the container's."""
        return argv((name, value) for name, value in self.options if name != "chdir")


def parse_srun(args: Sequence[str]) -> SrunCall:
    """As srun would: options end with the first argument that is none."""
    found, command = read(args, RANKS)
    for name, value in found:
        if name in {"nodelist", "exclude"} and "/" in str(value):
            raise UsageError(f"srun's --{name}={value} is not for pods: srun would read a file of the host's")
        if name == "input" and not (value in {"all", "none"} or str(value).isdigit()):
            raise UsageError(f"srun's --input={value} is not for pods: {_STREAMS}")
    return SrunCall(options=tuple(found), command=tuple(command))


# --- SlurmJobs: their flags, and the directives of their scripts -----------------------------------------------------

# Options are left out that make sbatch open files on the bridge's host (``--nodefile``, ``--bbf``, ``--export-file``),
# act as somebody else (``--uid``, ``--gid``), hand on the bridge's environment (``--export``, ``--get-user-env``,
# ``--propagate``), go to a Slurm that is not watched (``--clusters``), or make sbatch print something else than a job's
# number (``--wait``, ``--test-only``).
_NOT_KNOWN = "{arg} is no option of sbatch's that is known here; write it as --name=value"
SLURMJOB = Use(
    table=SBATCH,
    allowed=RESOURCES
    | SCHEDULING
    | _names("""
        array chdir comment error input kill-on-invalid-dep no-kill no-requeue open-mode output profile requeue signal
        tres-bind tres-per-task
    """),
    messages=Messages(
        unknown=_NOT_KNOWN,
        lacks_value="--{name} takes a value",
        takes_no_value="--{name} takes no value",
        no_option=_NOT_KNOWN,
    ),
    lenient=True,
    any_name=True,
)
MAIL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@-]*(,[A-Za-z0-9_][A-Za-z0-9._+@-]*)*")
LONGEST_VALUE = 1024  # characters of an option of a SlurmJob


def check_slurmjob(options: SbatchOptions, more: Collection[str] = ()) -> SbatchOptions:
    """The options, if all are such as a tenant may give. ``more`` are names that whoever runs the bridge adds."""
    for name, value in options.items():
        if name not in SLURMJOB.allowed and name not in more:
            raise UsageError(
                f"--{printable(name, 80)} is not an option that this bridge passes to sbatch",
                hint="docs/bridge.md lists them; whoever runs the bridge can add one with --sbatch-option.",
            )
        if not value and name not in more and SBATCH[name].argument is Argument.REQUIRED:
            raise UsageError(f"--{name} takes a value")
        plain(f"--{name}", value or "", most=LONGEST_VALUE)
        if name in {"nodelist", "exclude"} and "/" in (value or ""):  # sbatch takes it for a file with names
            raise UsageError(f"--{name} takes names of nodes, and no file")
        if name == "mail-user" and not MAIL.fullmatch(value or ""):
            raise UsageError(f"--mail-user: {printable(value or '', 80)} is no address")
    return options


# --- the command line of pinnace itself: for the job that is a cluster -----------------------------------------------

# Of the options that the user gives for the cluster, those that say where, and for whom, its pods' jobs run.
OF_PODS_TOO = frozenset({"partition", "account", "qos", "constraint", "reservation", "exclude", "time"})
