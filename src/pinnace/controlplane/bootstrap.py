"""What a new cluster needs before pods can run, done as soon as the API answers.

The controller-manager would make some of it too, seconds later.
"""

from __future__ import annotations

import http.client
import subprocess
import time
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import common_objects, dns_objects, root_certificate
from pinnace.controlplane.placement import placement_objects
from pinnace.controlplane.podsecurity import restriction_objects
from pinnace.kube.client import Api, ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pinnace.controlplane.objects import Object
    from pinnace.network.addresses import Ranges
    from pinnace.spec import NodeSpec

ROLES = "/readyz/poststarthook/rbac/bootstrap-roles"
NOT_READY = "node.kubernetes.io/not-ready"
LIMIT = 120.0  # seconds; a start takes two


def bootstrap(node: NodeSpec) -> None:
    """Create the objects that every cluster starts with."""
    api = Api(node.cluster.secrets / "admin.kubeconfig")
    ca = (node.cluster.secrets / "ca.crt").read_text()
    ranges = node.cluster.ranges
    deadline = time.monotonic() + LIMIT
    create_all(api, [*root_certificate(ca), *dns_objects(ranges), *common_objects()], until=deadline)
    if node.cluster.restriction:
        create_all(api, restriction_objects(node.cluster.restriction), until=deadline)
    if node.cluster.provisioning:
        create_all(api, placement_objects(node.cluster.provisioning), until=deadline)
    admit_nodes(api, node.cluster.ranges, until=deadline)


def create_all(api: Api, objects: Iterable[tuple[str, Object]], *, until: float) -> None:
    """Create objects, in order, in a cluster that may still be starting."""
    for path, body in objects:
        while True:
            try:
                api.create(path, body)
                break
            except (ApiError, OSError, http.client.HTTPException):
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)


def plant(seed: Path, data: Path) -> None:
    """Copy a seed (see ``controlplane.seed``) to where etcd starts. Its log is mostly zeros, and becomes a hole."""
    subprocess.run(["cp", "-r", "--sparse=always", f"{seed}/.", str(data)], check=True, timeout=60)
    for path in (data, *data.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def admit_nodes(api: Api, ranges: Ranges, *, until: float) -> None:
    """Let pods onto nodes the moment these are ready, and note their pod ranges.

    The admission plugin taints every new node, and the controller-manager takes the taint away, but only once all of
    its controllers are up. This does the same a little earlier, for as long as a cluster is starting.
    """
    admitted: set[str] = set()
    while time.monotonic() < until:
        for node in api.get("/api/v1/nodes")["items"]:
            name = node["metadata"]["name"]
            if not is_ready(node) or name in admitted:
                continue
            admitted.add(name)
            taints = [taint for taint in node["spec"].get("taints", ()) if taint["key"] != NOT_READY]
            index = _index(ranges, node)
            pods = str(ranges.pods_of(index))
            patch = {"spec": {"taints": taints, "podCIDR": pods, "podCIDRs": [pods]}}
            api.patch(f"/api/v1/nodes/{name}", patch)
        time.sleep(0.05 if not admitted else 0.5)


def is_ready(node: dict[str, Any]) -> bool:
    """Whether a node's kubelet says that it takes pods, and is heard."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


def _index(ranges: Ranges, node: dict[str, Any]) -> int:
    address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    index = ranges.owner(int(IPv4Address(address)))
    if index is None:
        raise ValueError(f"{address} is not an address of this cluster")
    return index
