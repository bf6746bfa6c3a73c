"""sbatch's own options, verbatim, for every command that submits."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from pinnace.cluster import launching
from pinnace.slurm.options import SBATCH, Argument, SbatchOptions, argv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Command = TypeVar("Command", bound="Callable[..., object]")

# What each takes, and what for: as sbatch's man page has it.
OPTIONS = {
    "exclusive": ("", "Whole nodes."),
    "nodes": ("COUNT", "Number of nodes of the cluster."),
    "time": ("TIME", "Time limit."),
    "partition": ("NAME", "Partition."),
    "account": ("NAME", "Account to charge."),
    "qos": ("NAME", "Quality of service."),
    "constraint": ("LIST", "Features that nodes must have."),
    "cpus-per-task": ("COUNT", "CPUs on each node."),
    "nodelist": ("LIST", "These nodes."),
    "exclude": ("LIST", "Not these nodes."),
    "mem": ("SIZE", "Memory on each node."),
    "gres": ("LIST", "Generic resources on each node."),
    "reservation": ("NAME", "Reservation."),
}


def slurm_options(command: Command) -> Command:
    """Add the options. The command gets what was given from ``given_options``."""
    for name, (takes, text) in reversed(OPTIONS.items()):
        letter = SBATCH[name].short
        names = [f"-{letter}", f"--{name}"] if letter else [f"--{name}"]
        flag = SBATCH[name].argument is not Argument.REQUIRED
        command = click.option(
            *names, is_flag=flag, metavar=takes or None, help=text, expose_value=False, callback=_collect
        )(command)
    return command


def _collect(context: click.Context, parameter: click.Parameter, value: object) -> None:
    given: SbatchOptions = context.meta.setdefault(__name__, {})
    if value not in {None, False}:
        given[(parameter.name or "").replace("_", "-")] = None if value is True else str(value)


def given_options(context: click.Context) -> SbatchOptions:
    """The options that were given."""
    return dict(context.meta.get(__name__, {}))


def given_argv(context: click.Context) -> list[str]:
    """The options that were given, as sbatch and srun take them."""
    return argv(given_options(context))


def node_count(context: click.Context) -> int:
    """How many nodes were asked for; sbatch also takes a range, of which the least counts."""
    nodes = given_options(context).get("nodes") or "1"
    try:
        return int(nodes.split("-", maxsplit=1)[0])
    except ValueError:
        raise click.BadParameter(f"{nodes!r} is no number of nodes", param_hint="--nodes") from None


def with_memory(options: SbatchOptions, environment: Mapping[str, str], memory: str = "") -> SbatchOptions:
    """sbatch's options without the number of nodes, and with a size of memory: that of clusters, or another one."""
    given = {name: value for name, value in options.items() if name != "nodes"}
    asked = launching.with_memory(argv(given), environment, memory)
    found = [option.removeprefix("--mem=") for option in asked if option.startswith("--mem=")]
    return given | {"mem": found[-1]} if found else given
