"""The first objects of a cluster, and its first nodes: also when it is done a second time."""

from __future__ import annotations

import http
import time
from typing import TYPE_CHECKING, Any, cast

from pinnace.controlplane.bootstrap import NodeAdmission, create_all
from pinnace.errors import ApiError
from pinnace.kube.watch import Changed, Listed
from pinnace.network.addresses import choose

if TYPE_CHECKING:
    from pinnace.kube.client import Api

RANGES = choose([])
READY = [{"type": "Ready", "status": "True"}]


class FakeApi:
    """An API server with this Service. It fails on what it does not know."""

    def __init__(self) -> None:
        self.patched: dict[str, Any] = {}

    def patch(self, path: str, body: Any) -> None:
        self.patched[path] = body

    def create(self, path: str, body: Any) -> None:
        assert (path, body["metadata"]["name"]) == ("/services", "kube-dns")
        raise ApiError(http.HTTPStatus.UNPROCESSABLE_ENTITY, "provided IP is already allocated")

    def get_or_none(self, path: str) -> Any:
        return {"metadata": {}} if path == "/services/kube-dns" else None


def node(name: str, *addresses: str) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": READY}
    if addresses:
        status["addresses"] = [{"type": "InternalIP", "address": address} for address in addresses]
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def test_nodes_that_are_not_ours_are_left_alone() -> None:
    """The bridge shows Slurm's partitions as nodes, which have no address."""
    found = [node("slurm-main"), node("stranger", "192.0.2.1"), node("n1", str(RANGES.node(0)))]
    api = FakeApi()
    NodeAdmission(cast("Api", api), RANGES).note(Listed(kind="nodes", objects=found))
    assert list(api.patched) == ["/api/v1/nodes/n1"]
    assert api.patched["/api/v1/nodes/n1"]["spec"]["podCIDR"] == str(RANGES.pods_of(0))


def test_a_node_is_admitted_once_when_it_has_become_ready() -> None:
    api = FakeApi()
    admission = NodeAdmission(cast("Api", api), RANGES)
    late = node("n2", str(RANGES.node(1)))
    admission.note(Listed(kind="nodes", objects=[late | {"status": late["status"] | {"conditions": []}}]))
    assert not api.patched
    late["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready"}, {"key": "example.com/own"}]
    admission.note(Changed(kind="nodes", object=late, gone=False))
    assert api.patched.pop("/api/v1/nodes/n2")["spec"]["taints"] == [{"key": "example.com/own"}]
    admission.note(Changed(kind="nodes", object=late, gone=False))
    assert not api.patched, "somebody may have tainted it since"


def test_what_is_there_already_is_not_asked_for_again_and_again() -> None:
    """The API refuses the address of a Service that exists with another code than its name."""
    until = time.monotonic() + 60
    create_all(cast("Api", FakeApi()), [("/services", {"metadata": {"name": "kube-dns"}})], until=until)
    assert time.monotonic() < until
