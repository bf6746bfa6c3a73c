"""The options that several commands share: which cluster is meant, and how one is started."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pinnace.cli.durations import Duration
from pinnace.cli.naming import complete_names
from pinnace.cli.slurm_options import given_argv, node_count, slurm_options
from pinnace.cluster.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.cluster.cluster_job import Place

    Command = Callable[..., object]

FILE = click.Path(exists=True, path_type=Path)

name_argument = click.argument("name", required=False, shell_complete=complete_names)
existing_name_option = click.option("--name", help="Name of the cluster.", shell_complete=complete_names)
wait_limit_option = click.option(
    "--wait-limit",
    type=Duration(),
    metavar="DURATION",
    help="Give up if the cluster is not ready by then; a job may wait for its turn for days. Without, no limit.",
)
retain_option = click.option("--retain", is_flag=True, help="Keep the cluster's directory and logs when it has ended.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only print the batch script.")

NAME = click.option("--name", help="Name of the cluster; one is made up without.", shell_complete=complete_names)
IMAGES = click.option(
    "--image",
    "images",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Image to load first, as `pinnace image load` does (repeat).",
)
PUBLISH = click.option(
    "--publish",
    multiple=True,
    type=click.IntRange(1024, 65535),
    metavar="PORT",
    help="Let every host offer this port to the outside, leading to the NodePort of the same number (repeat).",
)
NETWORK = click.option(
    "--network",
    metavar="CIDR",
    help="Take the addresses of pods, Services and nodes from this network, such as 10.128.0.0/16. "
    "Without, from one that this host has no route to.",
)
LISTEN = click.option(
    "--listen",
    metavar="CIDR",
    default="",
    envvar="PINNACE_LISTEN",
    help="Listen at the address that each host has in this network, such as 10.1.0.0/16. "
    "Without, at the one that the host's name leads to. Default: $PINNACE_LISTEN.",
)
INTERFACE = click.option(
    "--interface",
    metavar="NAME",
    default="",
    envvar="PINNACE_INTERFACE",
    help="Listen at the address of this network device of each host, such as ib0. Default: $PINNACE_INTERFACE.",
)
PORTS = click.option(
    "--ports",
    metavar="FIRST-LAST",
    default="",
    envvar="PINNACE_PORTS",
    help="Listen on ports of this range, such as 40000-40100, which the site's firewall lets through. "
    "Default: $PINNACE_PORTS.",
)
NATIVE_SOCKETS = click.option(
    "--native-sockets/--no-native-sockets",
    default=True,
    help="Let pods' TCP connections to other hosts be the hosts' own, where the kernel can (the default).",
)
# Two flags, because an option that may have a value would take the name of a workload for it.
RESTRICTED = click.option(
    "--restricted",
    "restricted",
    flag_value="restricted",
    default=None,
    help="For a cluster into which you let others: pods are held to the level `restricted` of the Pod Security "
    "Standards, and reach nothing of yours.",
)
BASELINE = click.option(
    "--baseline",
    "restricted",
    flag_value="baseline",
    help="The same with the level `baseline`, for images that must run as root.",
)
HOST_PATHS = click.option(
    "--allow-host-path",
    "host_paths",
    multiple=True,
    type=click.Path(),
    metavar="DIR[:rw]",
    help="A directory that pods of such a cluster may claim, by a storage class, and read; with :rw also write "
    "(repeat).",
)
SCRIPT_OPTIONS = (IMAGES, LISTEN, INTERFACE, PORTS)
ALL_OPTIONS = (IMAGES, PUBLISH, NETWORK, LISTEN, INTERFACE, PORTS, NATIVE_SOCKETS, RESTRICTED, BASELINE, HOST_PATHS)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """What the user asks of a cluster that a command starts."""

    name: str | None
    nodes: int
    options: list[str]  # sbatch's
    images: tuple[Path, ...]
    listen: str
    interface: str
    ports: str
    publish: tuple[int, ...] = ()
    network: str | None = None
    restricted: str | None = None
    host_paths: tuple[str, ...] = ()
    native_sockets: bool = True

    def cluster(self, *, name: str | None = None, place: Place | None = None, **more: Any) -> Cluster:
        """The cluster that is asked for; ``name`` is for one to which the user gives none."""
        asked = vars(self) | {"name": self.name or name} | more
        return Cluster(asked.pop("name"), place=place, **asked)


def cluster_options(command: Command) -> Command:
    """Add all options that describe a cluster. The command gets them as ``asked``, a ClusterOptions."""
    return _with_options(command, ALL_OPTIONS)


def script_cluster_options(command: Command) -> Command:
    """Add those that make sense for a script that was not written for pinnace."""
    return _with_options(command, SCRIPT_OPTIONS)


def _hidden(context: click.Context) -> dict[str, str]:
    """--listen and --interface say the same in two ways: one that is given hides the default of the other."""
    pair = ("listen", "interface")
    given = {name for name in pair if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return {name: "" for name in pair if given and name not in given}


def _with_options(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    shared = ClusterOptions.__dataclass_fields__.keys()

    @functools.wraps(command)
    def parsed(*args: object, **given: Any) -> object:
        context = click.get_current_context()
        asked = {field: given.pop(field) for field in shared & given.keys()}
        asked |= _hidden(context)
        count, slurm = node_count(context), given_argv(context)
        return command(*args, asked=ClusterOptions(nodes=count, options=slurm, **asked), **given)

    for option in reversed(options):
        option(parsed)
    return NAME(slurm_options(parsed))
