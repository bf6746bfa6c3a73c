"""Asking a cluster to end. A module of its own: the command line needs this of the agent, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.network import control
from pinnace.spec import HEAD, ClusterSpec, read_json

if TYPE_CHECKING:
    from pathlib import Path


def ask_to_stop(directory: Path) -> bool:
    """Ask a cluster's head to end it in order. Whether it heard."""
    spec = ClusterSpec.load(directory.resolve())
    head = read_json(spec.node_file(HEAD))
    if not head or "links" not in head:
        return False
    return control.ask_to_stop(HEAD, head["address"], head["links"], spec.link_key)
