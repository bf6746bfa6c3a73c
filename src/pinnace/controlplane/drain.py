"""The orderly end: every pod gets its grace period before the node's processes are gone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pinnace.controlplane.tasks import TASKS
from pinnace.kube import nodes, pods
from pinnace.kube.client import API_FAILURES, Api

if TYPE_CHECKING:
    from pinnace.spec import NodeSpec

DRAIN_LIMIT = 20.0  # seconds; after 30 (KillWait) Slurm kills what is left of a cancelled job
PODS_INTERVAL = 0.05  # seconds between looks whether pods still run
TASKS_INTERVAL = 0.1  # the same for containers of this node


def delete_pods(node: NodeSpec) -> None:
    """On the head: delete all pods, and wait until their kubelets have ended them. Controllers are stopped before."""
    api = Api(node.cluster.secrets / "admin.kubeconfig", timeout=5.0)
    deadline = time.monotonic() + DRAIN_LIMIT
    try:
        for namespace in {pod["metadata"]["namespace"] for pod in api.get("/api/v1/pods")["items"]}:
            api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods")
        while _some_run(api) and time.monotonic() < deadline:
            time.sleep(PODS_INTERVAL)
    except API_FAILURES:
        wait_for_containers()  # nobody can be asked: they end by themselves, or with the node


def _some_run(api: Api) -> bool:
    """Whether a pod still runs on a node that answers; of the others nobody will say that they have ended."""
    ready = {node["metadata"]["name"] for node in api.get("/api/v1/nodes")["items"] if nodes.is_ready(node)}
    here = [pod for pod in api.get("/api/v1/pods")["items"] if pod["spec"].get("nodeName") in ready]
    # Not whether their objects are gone: nobody is left to take off finalizers.
    return any(pods.running_containers(pod) for pod in here)


def wait_for_containers() -> None:
    """On the other nodes: until no container is left here."""
    deadline = time.monotonic() + DRAIN_LIMIT
    while time.monotonic() < deadline and TASKS.is_dir() and any(TASKS.iterdir()):
        time.sleep(TASKS_INTERVAL)
