"""Steps of a cluster's job on the host of its head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.errors import ClusterError
from pinnace.spec import HEAD, NodeRecord, NodeState

if TYPE_CHECKING:
    from pathlib import Path


def running_head(directory: Path) -> NodeRecord:
    """The record of a cluster's head. ClusterError if it does not run."""
    head = NodeRecord.read(directory / "nodes" / f"{HEAD}.json")
    if head is None or head.state is not NodeState.RUNNING:
        raise ClusterError(
            f"the cluster {directory.name} {'has ended' if head else 'has not started yet'}", hint="See `pinnace list`."
        )
    return head


def step_argv(head: NodeRecord, directory: Path, command: list[str]) -> list[str]:
    """A command as a step of the cluster's job, on the head's host, beside what runs there."""
    return [
        "srun",
        f"--jobid={head.job}",
        f"--nodelist={head.name}",
        "--nodes=1",
        "--ntasks=1",
        "--overlap",
        "--unbuffered",
        "--mpi=none",
        "--cpu-bind=none",
        "--quiet",
        "--job-name=pinnace-tunnel",
        f"--chdir={directory}",
        *command,
    ]
