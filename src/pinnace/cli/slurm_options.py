"""sbatch's own options, verbatim, for every command that submits."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., object]")

# name, short form, what it takes, what for: as sbatch's man page has them
OPTIONS = (
    ("--nodes", "-N", "COUNT", "Number of nodes of the cluster."),
    ("--time", "-t", "TIME", "Time limit."),
    ("--partition", "-p", "NAME", "Partition."),
    ("--account", "-A", "NAME", "Account to charge."),
    ("--qos", "-q", "NAME", "Quality of service."),
    ("--constraint", "-C", "LIST", "Features that nodes must have."),
    ("--cpus-per-task", "-c", "COUNT", "CPUs on each node."),
    ("--nodelist", "-w", "LIST", "These nodes."),
    ("--exclude", "-x", "LIST", "Not these nodes."),
    ("--mem", None, "SIZE", "Memory on each node."),
    ("--gres", None, "LIST", "Generic resources on each node."),
    ("--reservation", None, "NAME", "Reservation."),
)


def slurm_options(command: Command) -> Command:
    """Add the options. The command gets what was given as ``slurm``, a list for sbatch or srun."""
    for name, short, takes, text in reversed(OPTIONS):
        names = [short, name] if short else [name]
        command = click.option(*names, metavar=takes, help=text, expose_value=False, callback=_collect)(command)
    flag = click.option("--exclusive", is_flag=True, help="Whole nodes.", expose_value=False, callback=_collect)
    return flag(command)


def _collect(context: click.Context, parameter: click.Parameter, value: object) -> None:
    given = context.meta.setdefault(__name__, {})
    if value not in {None, False}:
        given[f"--{(parameter.name or '').replace('_', '-')}"] = value


def given_options(context: click.Context) -> list[str]:
    """The options that were given, as sbatch takes them."""
    given: dict[str, object] = context.meta.get(__name__, {})
    return [name if value is True else f"{name}={value}" for name, value in given.items()]


def node_count(context: click.Context) -> int:
    """How many nodes were asked for; sbatch also takes a range, of which the least counts."""
    nodes = str(context.meta.get(__name__, {}).get("--nodes", "1"))
    try:
        return int(nodes.split("-", maxsplit=1)[0])
    except ValueError:
        raise click.BadParameter(f"{nodes!r} is no number of nodes", param_hint="--nodes") from None
