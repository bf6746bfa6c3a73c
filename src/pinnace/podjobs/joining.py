"""The name, labels and taints of a node that joins.

Apart from ``podjobs.pod_runner``, because the agent starts with this alone: its own start is on the way of every pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinnace.spec import Tenant

EVICTED = 143  # what a pod that was ended by a signal leaves with, unless its containers say otherwise
ZONE = "slurm-jobs"
LONGEST_VALUE = 63  # of a label or taint; a name may have 253, and ends with the number of its job


def node_name(environment: Mapping[str, str]) -> str:
    """Named after its job: unique in the cluster and over time, and the user knows it from squeue."""
    return f"job-{environment['SLURM_JOB_ID']}"


def labels(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """What is known of a node that has joined. Its own zone: dead ones must not make the controllers doubt the rest."""
    known = {
        "pinnace.dev/host": host,
        "pinnace.dev/job": environment["SLURM_JOB_ID"],
        "topology.kubernetes.io/zone": ZONE,
    }
    if partition := environment.get("SLURM_JOB_PARTITION"):
        known["pinnace.dev/partition"] = partition
    return known


def taints(tenant: Tenant | None, known_as: str | None) -> tuple[str, ...]:
    """Nobody else is to be placed on a node that is for one pod: the provisioner's, or that of ``pinnace pod``.

    From the start: DaemonSets put their pods on a node that is cordoned, too. An elastic node is for anybody.
    """
    whose = tenant.uid if tenant else (known_as or "")[-LONGEST_VALUE:].lstrip("-.")
    return (f"pinnace.dev/pod={whose}:NoSchedule",) if whose else ()
