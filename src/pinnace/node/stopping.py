"""Asking a cluster to end. A module of its own: the command line needs this of the agent, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.errors import ClusterError
from pinnace.network import control
from pinnace.spec import HEAD, ClusterSpec, NodeRecord, NodeState

if TYPE_CHECKING:
    from pathlib import Path


def ask_to_stop(directory: Path) -> bool:
    """Ask a cluster's head to end it in order. Whether it heard."""
    spec = ClusterSpec.load(directory.resolve())
    try:
        head = NodeRecord.read(spec.node_file(HEAD))
    except ClusterError:  # of another version of pinnace: Slurm can end it
        return False
    if not head or head.state is not NodeState.RUNNING:
        return False
    return control.ask_to_stop(HEAD, head.address, head.links, spec.link_key)
