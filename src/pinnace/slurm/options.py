"""The options of sbatch and srun: the one table, the one parser of command lines, and the way back.

Options that are parsed are a dictionary everywhere: long names without dashes, and their values. Which of them somebody
may give is in ``allowed_options``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pinnace.errors import UsageError
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

SbatchOptions = dict[str, str | None]
"""Long names without dashes; None for an option that is given without a value."""


class Argument(StrEnum):
    """Whether an option takes a value."""

    NONE = "none"
    OPTIONAL = "optional"  # only written together with the option: after a `=`, or after the letter
    REQUIRED = "required"


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option as the man page of its command has it."""

    name: str
    short: str
    argument: Argument


# A name, its letter, and `=` if it takes a value, `[=]` if it may.
_OF_BOTH = """
    account,A= acctg-freq= bb= bbf= begin,b= chdir,D= cluster-constraint= clusters,M= comment= constraint,C= container=
    container-id= contiguous core-spec,S= cores-per-socket= cpu-freq= cpus-per-gpu= cpus-per-task,c= deadline=
    delay-boot= dependency,d= distribution,m= error,e= exclude,x= exclusive[=] export= extra= extra-node-info,B= gid=
    gpu-bind= gpu-freq= gpus,G= gpus-per-node= gpus-per-socket= gpus-per-task= gres= gres-flags= hint= hold,H input,i=
    job-name,J= kill-on-invalid-dep= licenses,L= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu=
    mem-per-gpu= mincpus= network= nice[=] no-kill,k[=] nodefile,F= nodelist,w= nodes,N= ntasks,n= ntasks-per-core=
    ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= open-mode= output,o= overcommit,O oversubscribe,s partition,p=
    power= prefer= priority= profile= propagate[=] qos,q= quiet,Q reboot reservation= segment= signal=
    sockets-per-node= spread-job stepmgr switches= test-only thread-spec= threads-per-core= time,t= time-min= tmp=
    tres-bind= tres-per-task= uid= use-min-nodes verbose,v wckey=
"""
_OF_SBATCH = """
    array,a= batch= export-file= get-user-env[=] ignore-pbs no-requeue parsable requeue wait,W wait-all-nodes= wrap=
"""
_OF_SRUN = """
    accel-bind= bcast[=] bcast-exclude= compress[=] cpu-bind= disable-status,X epilog= exact external-launcher
    het-group= immediate,I[=] interactive jobid= kill-on-bad-exit,K[=] label,l mpi= msg-timeout= multi-prog
    no-allocate,Z overlap preserve-env,E prolog= pty[=] relative,r= resv-ports[=] send-libs[=] slurmd-debug=
    task-epilog= task-prolog= threads,T= treewidth= unbuffered,u wait,W= whole
"""
_ARGUMENTS = {"": Argument.NONE, "[=]": Argument.OPTIONAL, "=": Argument.REQUIRED}


def _table(*texts: str) -> dict[str, Option]:
    found = re.findall(r"([\w-]+)(?:,(\w))?(\[=\]|=)?", " ".join(texts))
    return {name: Option(name=name, short=short, argument=_ARGUMENTS[argument]) for name, short, argument in found}


SBATCH = _table(_OF_BOTH, _OF_SBATCH)
SRUN = _table(_OF_BOTH, _OF_SRUN)


@dataclass(frozen=True, kw_only=True)
class Messages:
    """What is said of arguments that are refused.

    ``written`` is the option as it was given, ``name`` its long name, ``arg`` the whole argument.
    """

    refused: str = ""
    unknown: str
    lacks_value: str
    takes_no_value: str
    no_option: str


@dataclass(frozen=True, kw_only=True)
class Use:
    """A place where options are given: of which command, which of them, and how they are written there."""

    table: Mapping[str, Option]
    allowed: frozenset[str]
    refused: Mapping[str, str] = field(default_factory=dict)  # with the reasons
    messages: Messages
    grouped_letters: bool = False  # `-lN2` is `-l -N2`
    before_command: bool = False  # options end with the first argument that is none, or with `--`
    lenient: bool = False  # `--hold=` is `--hold`, `--nice 5` is `--nice=5`, and `-p=main` is `-p main`
    any_name: bool = False  # other long names are read too, and whoever reads them looks at them

    def letter(self, letter: str) -> str:
        """The long name behind a letter; empty if there is none."""
        return next((option.name for option in self.table.values() if option.short == letter), "")

    def argument(self, name: str, *, written: str, arg: str, also: Collection[str]) -> Argument:
        """Whether an option takes a value, if it may be given."""
        said = {"name": name, "written": written, "arg": printable(repr(arg), 80)}
        if name in self.refused:
            raise UsageError(self.messages.refused.format(reason=self.refused[name], **said))
        if name in also:
            return Argument.OPTIONAL
        if name in self.table and (self.any_name or name in self.allowed):
            return self.table[name].argument
        if self.any_name and written.startswith("--"):
            return Argument.OPTIONAL
        raise UsageError(self.messages.unknown.format(**said))


def parse(args: Iterable[str], use: Use, *, also: Collection[str] = ()) -> SbatchOptions:
    """Options and nothing else. ``also`` are names of a site's own, whose values follow a ``=``."""
    found, rest = read(args, use, also=also)
    if rest:
        raise UsageError(use.messages.no_option.format(arg=printable(repr(rest[0]), 80)))
    return dict(found)


def read(
    args: Iterable[str], use: Use, *, also: Collection[str] = ()
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The options at the beginning of a command line, each as often as it was given, and what follows them."""
    rest = list(args)
    found: list[tuple[str, str | None]] = []
    while rest and rest[0].startswith("-") and rest[0] != "-":
        arg = rest.pop(0)
        if arg == "--" and use.before_command:
            break
        found += [_long(arg, rest, use, also)] if arg.startswith("--") else _letters(arg, rest, use, also)
    return found, rest


def _long(arg: str, rest: list[str], use: Use, also: Collection[str]) -> tuple[str, str | None]:
    name, equals, value = arg[2:].partition("=")
    argument = use.argument(name, written=f"--{name}", arg=arg, also=also)
    if argument is Argument.REQUIRED and not equals:
        return name, _next(name, f"--{name}", rest, use)
    if use.lenient and argument is Argument.OPTIONAL and not equals and rest and not rest[0].startswith("-"):
        return name, rest.pop(0)
    if use.lenient and argument is not Argument.REQUIRED and not value:
        return name, None
    if argument is Argument.NONE and equals:
        raise UsageError(use.messages.takes_no_value.format(name=name))
    return name, value if equals else None


def _letters(arg: str, rest: list[str], use: Use, also: Collection[str]) -> list[tuple[str, str | None]]:
    """A letter and its value; or several letters, until one takes the rest of the argument, or the next one."""
    found: list[tuple[str, str | None]] = []
    letters = arg[1:]
    while letters:
        written, letters = f"-{letters[0]}", letters[1:]
        name = use.letter(written[1])
        argument = use.argument(name, written=written, arg=arg, also=also)
        if argument is not Argument.NONE:
            if not letters and argument is Argument.REQUIRED:
                return [*found, (name, _next(name, written, rest, use))]
            value = letters.removeprefix("=") if use.lenient else letters
            return [*found, (name, value or None)]
        if letters and not use.grouped_letters:
            raise UsageError(use.messages.takes_no_value.format(name=name))
        found.append((name, None))
    return found


def _next(name: str, written: str, rest: list[str], use: Use) -> str:
    if not rest:
        raise UsageError(use.messages.lacks_value.format(name=name, written=written))
    return rest.pop(0)


def argv(options: SbatchOptions | Iterable[tuple[str, str | None]]) -> list[str]:
    """The other way round."""
    pairs = options.items() if isinstance(options, dict) else options
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in pairs]


# Of two that say the same in different ways, the later counts alone.
_GROUPS = (
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
    ("exclusive", "oversubscribe"),
)


_GPUS = _GROUPS[1]


def merge(*layers: Mapping[str, str | None]) -> SbatchOptions:
    """Later layers override earlier ones."""
    merged: SbatchOptions = {}
    for layer in layers:
        for group in _GROUPS:
            if any(name in layer for name in group):
                merged = {name: value for name, value in merged.items() if name not in group}
        merged = _without_gpus(merged, layer) | dict(layer)
    return merged


def _without_gpus(merged: SbatchOptions, layer: Mapping[str, str | None]) -> SbatchOptions:
    """Those that leave the GPUs to the next layer: from 26.05 on, Slurm takes --gres=gpu or --gpus, not both."""
    left = dict(merged)
    if any(_is_gpu(word) for word in (layer.get("gres") or "").split(",")):
        left = {name: value for name, value in left.items() if name not in _GPUS}
    if "gres" in left and any(name in layer for name in _GPUS):
        others = [word for word in (left.pop("gres") or "").split(",") if word and not _is_gpu(word)]
        left |= {"gres": ",".join(others)} if others else {}
    return left


def _is_gpu(word: str) -> bool:
    return word.removeprefix("gres/").removeprefix("gres:").partition(":")[0] == "gpu"
