"""Which cluster a command means, and how a shell completes its name."""

from __future__ import annotations

import contextlib

import click

from pinnace.cluster.cluster import Cluster
from pinnace.cluster.directory import all_clusters
from pinnace.errors import ClusterError, PinnaceError, UsageError


def complete_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: the clusters whose names begin so."""
    with contextlib.suppress(PinnaceError):
        return [directory.name for directory in all_clusters() if directory.name.startswith(incomplete)]
    return []


name_argument = click.argument("name", required=False, shell_complete=complete_names)
which_option = click.option("--name", help="Name of the cluster.", shell_complete=complete_names)


def pick(name: str | None) -> Cluster:
    """The cluster that is meant: the named one, or the only one."""
    if name:
        return Cluster.existing(name)
    clusters = all_clusters()
    if len(clusters) != 1:
        names = ", ".join(cluster.name for cluster in clusters)
        if not clusters:
            raise ClusterError("you have no cluster", hint="Start one with `pinnace up`.")
        raise UsageError("you have several clusters: say which", hint=f"One of {names}.")
    return Cluster.existing(clusters[0].name)
