"""The orderly end: every pod gets its grace period before the node's processes are gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.bootstrap import is_ready
from pinnace.kube.client import API_FAILURES, Api

if TYPE_CHECKING:
    from pinnace.spec import NodeSpec

LIMIT = 20.0  # seconds; after 30 (KillWait) Slurm kills what is left of a cancelled job
TASKS = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")


def delete_pods(node: NodeSpec) -> None:
    """On the head: delete all pods, and wait until their kubelets have ended them. Controllers are stopped before."""
    api = Api(node.cluster.secrets / "admin.kubeconfig", timeout=5.0)
    deadline = time.monotonic() + LIMIT
    try:
        for namespace in {pod["metadata"]["namespace"] for pod in api.get("/api/v1/pods")["items"]}:
            api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods")
        while _some_run(api) and time.monotonic() < deadline:
            time.sleep(0.05)
    except API_FAILURES:
        wait_for_containers()  # nobody can be asked: they end by themselves, or with the node


def _some_run(api: Api) -> bool:
    """Whether a pod still runs on a node that answers; of the others nobody will say that they have ended."""
    ready = {node["metadata"]["name"] for node in api.get("/api/v1/nodes")["items"] if is_ready(node)}
    pods = api.get("/api/v1/pods")["items"]
    return any(has_containers(pod) for pod in pods if pod["spec"].get("nodeName") in ready)


def has_containers(pod: dict[str, Any]) -> bool:
    """Whether anything of a pod runs. The object itself may stay: nobody is left to take off its finalizers."""
    statuses = [
        *pod["status"].get("initContainerStatuses", ()),
        *pod["status"].get("containerStatuses", ()),
        *pod["status"].get("ephemeralContainerStatuses", ()),
    ]
    return any("running" in status["state"] for status in statuses)


def wait_for_containers() -> None:
    """On the other nodes: until no container is left here."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and TASKS.is_dir() and any(TASKS.iterdir()):
        time.sleep(0.1)
