"""Which cluster a command means, and how a shell completes its name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pinnace.cluster.cluster import Cluster
from pinnace.cluster.directory import all_clusters
from pinnace.errors import ClusterError, PinnaceError, UsageError

if TYPE_CHECKING:
    import click


def complete_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: the names of clusters that begin so."""
    with contextlib.suppress(PinnaceError):
        return [directory.name for directory in all_clusters() if directory.name.startswith(incomplete)]
    return []


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
