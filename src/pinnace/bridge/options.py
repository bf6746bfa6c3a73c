"""sbatch's options: the one table of what each is called in a SlurmJob, on the command line and for slurmrestd.

slurmrestd takes no ``#SBATCH`` lines, so they are read here: a script means the same on both ways. sbatch itself never
sees them (``without_directives``), so a script cannot give it an option that is not in the table.

Options are left out that make sbatch open files on the bridge's host (``--nodefile``, ``--bbf``, ``--export-file``),
act as somebody else (``--uid``, ``--gid``), hand on the bridge's environment (``--export``, ``--get-user-env``,
``--propagate``), go to a Slurm that is not watched (``--clusters``), or make sbatch print something else than a job's
number (``--wait``, ``--test-only``).
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pinnace.errors import UsageError
from pinnace.slurm.times import parse_limit
from pinnace.validation import plain, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = [
    "OPTIONS",
    "Kind",
    "Options",
    "arguments",
    "checked",
    "directives",
    "from_fields",
    "parse",
    "properties",
    "without_directives",
]

Options = dict[str, str]
"""Long names of sbatch's options and their values; a flag has the value ``""``."""

MEMORY = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}  # in MiB, as Slurm counts


class Kind(StrEnum):
    """What an option takes."""

    TEXT = "text"
    COUNT = "count"
    RANGE = "range"
    MEMORY = "memory"
    TIME = "time"
    MOMENT = "moment"
    FLAG = "flag"
    CHOICE = "choice"  # yes or no
    SHARING = "sharing"


@dataclass(frozen=True, kw_only=True)
class Option:
    """``field`` is its name in a SlurmJob, ``name`` and ``short`` sbatch's, ``rest`` slurmrestd's (if it has it)."""

    field: str
    name: str
    rest: str = ""
    short: str = ""
    kind: Kind = Kind.TEXT


def _option(field: str, name: str, rest: str = "", short: str = "", kind: Kind = Kind.TEXT) -> Option:
    return Option(field=field, name=name, rest=rest, short=short, kind=kind)


OPTIONS = (
    _option("jobName", "--job-name", "name", "-J"),
    _option("partition", "--partition", "partition", "-p"),
    _option("account", "--account", "account", "-A"),
    _option("qos", "--qos", "qos", "-q"),
    _option("nodes", "--nodes", "nodes", "-N", Kind.RANGE),
    _option("tasks", "--ntasks", "tasks", "-n", Kind.COUNT),
    _option("tasksPerNode", "--ntasks-per-node", "tasks_per_node", "", Kind.COUNT),
    _option("cpusPerTask", "--cpus-per-task", "cpus_per_task", "-c", Kind.COUNT),
    _option("memory", "--mem", "memory_per_node", "", Kind.MEMORY),
    _option("memoryPerCPU", "--mem-per-cpu", "memory_per_cpu", "", Kind.MEMORY),
    _option("time", "--time", "time_limit", "-t", Kind.TIME),
    _option("gres", "--gres", "gres"),
    _option("gpus", "--gpus", "gpus", "-G"),
    _option("constraint", "--constraint", "constraints", "-C"),
    _option("nodeList", "--nodelist", "", "-w"),
    _option("exclude", "--exclude", "", "-x"),
    _option("exclusive", "--exclusive", "exclusive", "", Kind.SHARING),
    _option("reservation", "--reservation", "reservation"),
    _option("licenses", "--licenses", "licenses", "-L"),
    _option("array", "--array", "array", "-a"),
    _option("begin", "--begin", "begin_time", "-b", Kind.MOMENT),
    _option("deadline", "--deadline", "deadline"),
    _option("dependency", "--dependency", "dependency", "-d"),
    _option("killOnInvalidDependency", "--kill-on-invalid-dep", "kill_on_invalid_dependency", "", Kind.CHOICE),
    _option("nice", "--nice", "nice", "", Kind.COUNT),
    _option("signal", "--signal", "signal"),
    _option("output", "--output", "standard_output", "-o"),
    _option("error", "--error", "standard_error", "-e"),
    _option("input", "--input", "standard_input", "-i"),
    _option("openMode", "--open-mode", "open_mode"),
    _option("mailType", "--mail-type", "mail_type"),
    _option("mailUser", "--mail-user", "mail_user"),
    _option("comment", "--comment", "comment"),
    _option("wckey", "--wckey", "wckey"),
    _option("workingDirectory", "--chdir", "current_working_directory", "-D"),
    _option("requeue", "--requeue", "requeue", "", Kind.FLAG),
    _option("hold", "--hold", "hold", "-H", Kind.FLAG),
)
# What else of sbatch's may be given: it only says which resources a job needs, and how they are used.
VALUED = frozenset({
    "--acctg-freq", "--core-spec", "--cores-per-socket", "--cpu-freq", "--cpus-per-gpu", "--delay-boot",
    "--distribution", "--extra-node-info", "--gpu-bind", "--gpu-freq", "--gpus-per-node", "--gpus-per-socket",
    "--gpus-per-task",
    "--gres-flags", "--hint", "--mcs-label", "--mem-bind", "--mem-per-gpu", "--mincpus", "--network",
    "--ntasks-per-core",
    "--ntasks-per-gpu", "--ntasks-per-socket", "--power", "--prefer", "--priority", "--profile", "--sockets-per-node",
    "--switches", "--thread-spec", "--threads-per-core", "--time-min", "--tmp", "--tres-bind", "--tres-per-task",
})  # fmt: skip
BARE = frozenset({
    "--contiguous", "--no-kill", "--no-requeue", "--overcommit", "--oversubscribe", "--spread-job",
    "--use-min-nodes",
})  # fmt: skip
OPTIONAL = frozenset({"--exclusive", "--nice"})  # of the table, those that also go without a value
NODES = frozenset({"--nodelist", "--exclude"})  # sbatch takes a value with a slash for a file with names
MAIL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@-]*(,[A-Za-z0-9_][A-Za-z0-9._+@-]*)*")
LONGEST = 1024  # characters of a value
DIRECTIVE = re.compile(r"#(?=SBATCH|SLURM|BSUB|PBS)")
BY_FIELD = {option.field: option for option in OPTIONS}
BY_NAME = {option.name: option for option in OPTIONS}
BY_SHORT = {option.short: option for option in OPTIONS if option.short}


def from_fields(fields: Mapping[str, Any]) -> Options:
    """The typed fields of a SlurmJob's ``options``."""
    given: Options = {}
    for field, value in fields.items():
        option = BY_FIELD[field]
        if value is True:
            given[option.name] = ""
        elif value is not False:
            given[option.name] = str(value)
    return given


def parse(words: Iterable[str]) -> Options:
    """Options as sbatch takes them. What is not in the table must be ``--name=value`` or ``--name``."""
    given: Options = {}
    waiting: Option | None = None
    for word in words:
        if waiting:
            given[waiting.name], waiting = word, None
            continue
        name, equals, value = word.partition("=")
        option = BY_NAME.get(name) or BY_SHORT.get(name)
        if option and option.kind in {Kind.FLAG, Kind.SHARING}:
            given[option.name] = value
        elif option and not equals:
            waiting = option
        elif name.startswith("--"):
            given[name] = value
        elif option := BY_SHORT.get(word[:2]):
            given[option.name] = word[2:].removeprefix("=")
        else:
            known = printable(repr(word), 80)
            raise UsageError(f"{known} is no option of sbatch's that is known here; write it as --name=value")
    if waiting:
        raise UsageError(f"{waiting.name} takes a value")
    return given


def header(script: str) -> int:
    """How many lines of a script sbatch searches for directives: those before the first command.

    As in sbatch, only a newline ends a line.
    """
    lines = script.split("\n")
    commands = (number for number, line in enumerate(lines) if line.strip(" \t\r\v\f")[:1] not in {"", "#"})
    return next(commands, len(lines))


def directives(script: str) -> Options:
    """What a script's ``#SBATCH`` lines say. As for sbatch, they end with the first command."""
    given: Options = {}
    for line in script.split("\n")[: header(script)]:
        if line.startswith("#SBATCH"):
            try:
                given |= parse(shlex.split(line.removeprefix("#SBATCH"), comments=True))
            except ValueError as error:
                raise UsageError(f"{printable(line, 80)}: {error}") from error
    return given


def without_directives(script: str) -> str:
    """The script with its directives made comments, for sbatch, which is given what of them is allowed as options."""
    lines, count = script.split("\n"), header(script)
    commented = [DIRECTIVE.sub("# ", line, count=1) if DIRECTIVE.match(line) else line for line in lines[:count]]
    return "\n".join([*commented, *lines[count:]])


def checked(options: Options, more: Collection[str] = ()) -> Options:
    """The options, if all are such as a tenant may give. ``more`` are names that whoever runs the bridge adds."""
    for name, value in options.items():
        option = BY_NAME.get(name)
        if option is None and name not in VALUED | BARE and name not in more:
            raise UsageError(
                f"{printable(name, 80)} is not an option that this bridge passes to sbatch",
                hint="docs/bridge.md lists them; whoever runs the bridge can add one with --sbatch-option.",
            )
        bare = name in BARE | OPTIONAL or (option is not None and option.kind is Kind.FLAG)
        if not value and not bare and name not in more:
            raise UsageError(f"{name} takes a value")
        plain(name, value, most=LONGEST)
        if name in NODES and "/" in value:
            raise UsageError(f"{name} takes names of nodes, and no file")
        if name == "--mail-user" and not MAIL.fullmatch(value):
            raise UsageError(f"--mail-user: {printable(value, 80)} is no address")
    return options


def arguments(options: Options) -> list[str]:
    """For sbatch."""
    return [f"{name}={value}" if value else name for name, value in options.items()]


def properties(options: Options) -> dict[str, Any]:
    """For slurmrestd: what it calls them, in its units."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        option = BY_NAME.get(name)
        if option is None or not option.rest:
            raise UsageError(f"slurmrestd has nothing like {name}", hint="Use Slurm's command line for this job.")
        try:
            given[option.rest] = IN_REST.get(option.kind, str)(value)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"{name}={printable(value, 80)}: {error or 'not understood'}") from error
    return given


def mebibytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError("not a size of memory")
    return max(1, round(int(found[1]) * MEMORY[found[2].upper()]))


IN_REST: dict[Kind, Callable[[str], Any]] = {
    Kind.COUNT: int,
    Kind.RANGE: lambda value: [int(count) for count in value.split("-", maxsplit=1)] if "-" in value else int(value),
    Kind.MEMORY: mebibytes,
    Kind.TIME: parse_limit,
    Kind.MOMENT: lambda value: int(dt.datetime.fromisoformat(value).timestamp()),
    Kind.FLAG: lambda _: True,
    Kind.CHOICE: lambda value: value == "yes",
    Kind.SHARING: lambda value: value or "exclusive",
}
