"""What a new cluster needs before pods can run, done as soon as the API answers.

The controller-manager would make some of it too, seconds later.
"""

from __future__ import annotations

import contextlib
import http
import time
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import api_objects, common_objects, dns_objects, host_network_class, root_certificate
from pinnace.controlplane.placement import placement_objects
from pinnace.controlplane.podsecurity import restriction_objects
from pinnace.errors import ApiError
from pinnace.kube import nodes
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.watch import Listed, watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.controlplane.objects import Object
    from pinnace.kube.watch import Changed
    from pinnace.network.addresses import Ranges
    from pinnace.spec import NodeSpec

ROLES = "/readyz/poststarthook/rbac/bootstrap-roles"
NOT_READY = "node.kubernetes.io/not-ready"
START_LIMIT = 120.0  # seconds; a start takes two
RETRY_INTERVAL = 0.02  # seconds between tries to create an object while the API starts


def bootstrap(node: NodeSpec) -> None:
    """Create the objects that every cluster starts with."""
    api = Api(node.cluster.secrets / "admin.kubeconfig")
    ca = (node.cluster.secrets / "ca.crt").read_text()
    ranges = node.cluster.ranges
    deadline = time.monotonic() + START_LIMIT
    create_all(
        api, [*api_objects(ranges), *root_certificate(ca), *dns_objects(ranges), *common_objects()], until=deadline
    )
    if node.cluster.has_host_network:
        create_all(api, host_network_class(), until=deadline)
    if node.cluster.restriction:
        create_all(api, restriction_objects(node.cluster.restriction), until=deadline)
    if node.cluster.provisioning:
        create_all(api, placement_objects(node.cluster.provisioning), until=deadline)
    watch(node.cluster.secrets / "admin.kubeconfig", "nodes", NodeAdmission(api, ranges).note)
    time.sleep(max(0.0, deadline - time.monotonic()))


def create_all(api: Api, objects: Iterable[tuple[str, Object]], *, until: float) -> None:
    """Create objects, in order, in a cluster that may still be starting."""
    for path, body in objects:
        while True:
            try:
                api.create(path, body)
                break
            except API_FAILURES as error:
                if time.monotonic() > until:
                    raise
                if _is_there(api, path, body, error):
                    break
                time.sleep(RETRY_INTERVAL)


def _is_there(api: Api, path: str, body: Object, error: Exception) -> bool:
    """Whether an object was refused because it exists: a Service is for its address, before its name is looked at."""
    if not isinstance(error, ApiError) or error.code != http.HTTPStatus.UNPROCESSABLE_ENTITY:
        return False
    with contextlib.suppress(*API_FAILURES):
        return api.get_or_none(f"{path}/{body['metadata']['name']}") is not None
    return False


class NodeAdmission:
    """Lets pods onto nodes the moment these are ready, and notes their pod ranges.

    The admission plugin taints every new node, and the controller-manager takes the taint away, but only once all of
    its controllers are up. This does the same a little earlier, for as long as a cluster is starting.
    """

    def __init__(self, api: Api, ranges: Ranges) -> None:
        self._api, self._ranges = api, ranges
        self._admitted: set[str] = set()

    def note(self, change: Listed | Changed) -> None:
        """Take what a watch of nodes tells."""
        for node in change.objects if isinstance(change, Listed) else [change.object]:
            name = node["metadata"]["name"]
            if nodes.is_ready(node) and name not in self._admitted:
                self._admit(name, node)
                self._admitted.add(name)

    def _admit(self, name: str, node: Object) -> None:
        index = _index(self._ranges, node)
        if index is None:  # not one of ours: the bridge shows partitions as nodes
            return
        taints = [taint for taint in node["spec"].get("taints", ()) if taint["key"] != NOT_READY]
        pods = str(self._ranges.pods_of(index))
        self._api.patch(nodes.path(name), {"spec": {"taints": taints, "podCIDR": pods, "podCIDRs": [pods]}})


def _index(ranges: Ranges, node: dict[str, Any]) -> int | None:
    """The index of a node, by its address; None if it has none of this cluster."""
    address = nodes.internal_ip(node)
    return ranges.owner(int(IPv4Address(address))) if address else None
