"""Access to the API from a host's network, where Slurm is: through the port that the head's host forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.kube.access import Access
from pinnace.spec import HEAD, NodeRecord

if TYPE_CHECKING:
    from pinnace.spec import ClusterSpec


def access(cluster: ClusterSpec, user: str = "provisioner") -> Access | None:
    """The API, for the user of one of the cluster's kubeconfigs. None while the head has not said where it is."""
    head = NodeRecord.read(cluster.node_file(HEAD))
    if not head or head.api is None:
        return None
    own = Access.from_file(cluster.secrets / f"{user}.kubeconfig")
    return own.at(head.address, head.api, cluster.api_name)
