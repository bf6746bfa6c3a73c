"""srun's options inside a container: what is Slurm's own business is passed on, what concerns the host is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Long name: short name, and whether it takes a value (None: it may, after a `=`).
ALLOWED: dict[str, tuple[str, bool | None]] = {
    "accel-bind": ("", True),
    "acctg-freq": ("", True),
    "chdir": ("D", True),
    "constraint": ("C", True),
    "contiguous": ("", False),
    "core-spec": ("S", True),
    "cores-per-socket": ("", True),
    "cpu-bind": ("", True),
    "cpu-freq": ("", True),
    "cpus-per-gpu": ("", True),
    "cpus-per-task": ("c", True),
    "disable-status": ("X", False),
    "distribution": ("m", True),
    "exact": ("", False),
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
    "immediate": ("I", None),
    "input": ("i", True),
    "job-name": ("J", True),
    "kill-on-bad-exit": ("K", None),
    "label": ("l", False),
    "licenses": ("L", True),
    "mem": ("", True),
    "mem-bind": ("", True),
    "mem-per-cpu": ("", True),
    "mem-per-gpu": ("", True),
    "mpi": ("", True),
    "msg-timeout": ("", True),
    "network": ("", True),
    "nodelist": ("w", True),
    "nodes": ("N", True),
    "ntasks": ("n", True),
    "ntasks-per-core": ("", True),
    "ntasks-per-gpu": ("", True),
    "ntasks-per-node": ("", True),
    "ntasks-per-socket": ("", True),
    "overcommit": ("O", False),
    "overlap": ("", False),
    "oversubscribe": ("s", False),
    "profile": ("", True),
    "pty": ("", None),
    "quiet": ("Q", False),
    "relative": ("r", True),
    "resv-ports": ("", None),
    "slurmd-debug": ("", True),
    "sockets-per-node": ("", True),
    "spread-job": ("", False),
    "switches": ("", True),
    "thread-spec": ("", True),
    "threads": ("T", True),
    "threads-per-core": ("", True),
    "time": ("t", True),
    "unbuffered": ("u", False),
    "use-min-nodes": ("", False),
    "verbose": ("v", False),
    "wait": ("W", True),
    "whole": ("", False),
}
_FILES = "it would be a file of the host's; redirect the streams of srun itself"
_HOST = "it would run on the host"
REFUSED = {
    "bcast": "the image is there already",
    "container": "ranks run in the pod's image",
    "epilog": _HOST,
    "error": _FILES,
    "export": "ranks have srun's own environment",
    "gid": "ranks run as you",
    "jobid": "ranks run in the pod's own job",
    "multi-prog": "let the program look at SLURM_PROCID",
    "output": _FILES,
    "prolog": _HOST,
    "task-epilog": _HOST,
    "task-prolog": _HOST,
    "uid": "ranks run as you",
}
_SHORT = {short: name for name, (short, _) in ALLOWED.items() if short}
_REFUSED_SHORT = {"e": "error", "o": "output"}


@dataclass(frozen=True, kw_only=True)
class Call:
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
        return [
            f"--{name}" if value is None else f"--{name}={value}" for name, value in self.options if name != "chdir"
        ]


def parse(words: Sequence[str]) -> Call:
    """As srun would: options end with the first word that is none."""
    rest = list(words)
    found: list[tuple[str, str | None]] = []
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        found += _long(word[2:], rest) if word.startswith("--") else _short(word[1:], rest)
    for name, value in found:
        if name in {"nodelist", "exclude"} and "/" in str(value):
            raise UsageError(f"srun's --{name}={value} is not for pods: srun would read a file of the host's")
        if name == "input" and not (value in {"all", "none"} or str(value).isdigit()):
            raise UsageError(f"srun's --input={value} is not for pods: {_FILES}")
    return Call(options=tuple(found), command=tuple(rest))


def _long(word: str, rest: list[str]) -> list[tuple[str, str | None]]:
    name, equals, value = word.partition("=")
    takes = _takes(name, f"--{name}")
    if takes and not equals:
        return [(name, _value(f"--{name}", rest))]
    if takes is False and equals:
        raise UsageError(f"srun's --{name} takes no value")
    return [(name, value if equals else None)]


def _short(letters: str, rest: list[str]) -> list[tuple[str, str | None]]:
    """Letters in one word: each an option, until one takes the rest of the word, or the next, for its value."""
    found: list[tuple[str, str | None]] = []
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORT.get(letter) or _REFUSED_SHORT.get(letter) or ""
        takes = _takes(name, f"-{letter}")
        if takes is False:
            found.append((name, None))
            continue
        value = letters or (_value(f"-{letter}", rest) if takes else None)
        return [*found, (name, value)]
    return found


def _takes(name: str, written: str) -> bool | None:
    if name in REFUSED:
        raise UsageError(f"srun's {written} is not for pods: {REFUSED[name]}")
    if name not in ALLOWED:
        raise UsageError(f"srun's {written} is not known here")
    return ALLOWED[name][1]


def _value(written: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"srun's {written} lacks its value")
    return rest.pop(0)
