"""A node that is there for one pod: it takes the pod to itself, and ends when the pod has ended.

Its helper runs beside the agent, on the host's network, and speaks with the API where the head's host offers it. The
pod is bound before the kubelet runs, so that the kubelet finds it the moment it looks.

Slurm ends jobs with a signal: by scancel, near the time limit, for preemption. A kubelet ends a pod on its own when the
pod's deadline is over, with hooks and grace period, and says with which exit codes; so the helper sets a deadline that
has passed. What Slurm's reason was is written into the pod by the provisioner, which is there when the node is not.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import os
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.access import Access
from pinnace.controlplane.api import Api, ApiError
from pinnace.provisioner import ending
from pinnace.provisioner.hands import Kubernetes, timestamp
from pinnace.provisioner.reconciling import retirement
from pinnace.spec import HEAD, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pinnace.spec import NodeSpec, Tenant

EVICT = signal.SIGUSR1  # from the agent: end the pod
EVICT_LIMIT = 25.0  # seconds; after 30 (KillWait) Slurm kills what is left of a cancelled job
RETRY = 0.1  # seconds before the API is asked again
ROUND = 120  # seconds of one watch
CLAIMS_LIMIT = 60.0  # seconds
SELECTED = "volume.kubernetes.io/selected-node"
ZONE = "slurm-jobs"
EVICTED = 143  # what a pod that was ended by a signal leaves with, unless its containers say otherwise


def node_name(environment: Mapping[str, str]) -> str:
    """Named after its job: unique in the cluster and over time, and the user knows it from squeue."""
    name = f"job-{environment['SLURM_JOB_ID']}"
    return name if environment.get("SLURM_PROCID", "0") == "0" else f"{name}-{environment['SLURM_PROCID']}"


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


def taints(tenant: Tenant) -> tuple[str, ...]:
    """Nobody else is to be placed here."""
    return (f"pinnace.dev/pod={tenant.uid}:NoSchedule",)


def serve(node: NodeSpec, left: Callable[[int], None]) -> None:
    """Take the pod, follow it to its end, and say that it has left, and with which exit code."""
    tenant = node.tenant
    if tenant is None:
        raise ValueError("this node is for no pod")
    news: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    evict = threading.Event()

    def told(*_: object) -> None:
        evict.set()
        news.put(None)

    signal.signal(EVICT, told)
    api = _api(node)
    pod = _take(api, tenant, node)
    threading.Thread(target=_follow, args=(node, tenant, news), daemon=True).start()
    if pod and (claims := claim_names(pod)):
        threading.Thread(target=_choose_volumes, args=(node, tenant, claims), daemon=True).start()
    deadline = 0.0
    while pod is not None and not has_ended(pod):
        if evict.is_set() and not deadline:
            deadline = time.monotonic() + EVICT_LIMIT
            _set_deadline(api, tenant)
        try:
            heard = news.get(timeout=max(0.0, deadline - time.monotonic()) if deadline else None)
        except queue.Empty:
            break
        pod = heard or pod
        if pod.get("gone"):
            pod = None
    code = container_code(pod) if pod else 0  # who deletes a pod has not failed
    if evict.is_set() and not code:
        code = EVICTED
    _retire(api, node)
    left(code)
    threading.Event().wait()  # the agent ends us


def has_ended(pod: dict[str, Any]) -> bool:
    """Whether a pod's kubelet has said the last word. Of one that is being deleted, that is that it is gone."""
    terminal = pod["status"].get("phase") in {"Succeeded", "Failed"}
    return terminal and "deletionTimestamp" not in pod["metadata"]


def container_code(pod: dict[str, Any]) -> int:
    """The exit code of a pod: the first of its containers' that is not 0."""
    statuses = [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]
    codes = [int(status["state"].get("terminated", {}).get("exitCode", 0)) for status in statuses]
    failed = 1 if pod["status"].get("phase") == "Failed" else 0
    return next((code for code in codes if code), failed) if failed else 0


def _api(node: NodeSpec) -> Api:
    head = read_json(node.cluster.node_file(HEAD))
    if not head or "api" not in head:
        raise OSError("the head has not said where the API is")
    access = Access.from_file(node.cluster.secrets / "provisioner.kubeconfig")
    return Api(access.at(str(head["address"]), int(head["api"])))


def node_object(node: NodeSpec) -> dict[str, Any]:
    """The node as the API shall know it before its kubelet registers: Kubernetes deletes pods of nodes that it has not.

    The kubelet admits its first pod by what it finds here, and puts its own figures in place a moment later.
    """
    taints = [taint.rpartition(":") for taint in node.taints]
    listed = [
        {"key": what.partition("=")[0], "value": what.partition("=")[2], "effect": effect} for what, _, effect in taints
    ]
    labels = {**node.labels, "kubernetes.io/hostname": node.name}
    metadata = {"name": node.name, "labels": labels}
    offer = {
        "cpu": str(node.share.cpus or os.cpu_count()),
        "memory": str(node.share.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "ephemeral-storage": "1Ti",
        "pods": "250",
    }
    addresses = [{"type": "InternalIP", "address": node.address}, {"type": "Hostname", "address": node.name}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"taints": listed},
        "status": {"capacity": offer, "allocatable": offer, "addresses": addresses},
    }


def _take(api: Api, tenant: Tenant, node: NodeSpec) -> dict[str, Any] | None:
    """Bind the pod to this node. None if it is not there any more, or has gone elsewhere."""
    name = node.name
    target = {"apiVersion": "v1", "kind": "Node", "name": name}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": tenant.name, "uid": tenant.uid},
               "target": target}  # fmt: skip
    while True:
        try:
            with contextlib.suppress(ApiError):
                api.create("/api/v1/nodes", node_object(node))
                api.request("POST", f"{tenant.path}/binding", binding)
            pod: dict[str, Any] = api.get(tenant.path)
        except ApiError as error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
        except (OSError, http.client.HTTPException):
            pass
        else:
            ours = pod["metadata"]["uid"] == tenant.uid and pod["spec"].get("nodeName") in {name, None}
            if not ours or pod["spec"].get("nodeName"):
                return pod if ours else None
        time.sleep(RETRY)


def claim_names(pod: dict[str, Any]) -> set[str]:
    """The claims whose volumes a pod mounts; those of ephemeral volumes are made by a controller."""
    names = set()
    for volume in pod["spec"].get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            names.add(volume["persistentVolumeClaim"]["claimName"])
        elif "ephemeral" in volume:
            names.add(f"{pod['metadata']['name']}-{volume['name']}")
    return names


def _choose_volumes(node: NodeSpec, tenant: Tenant, claims: set[str]) -> None:
    """What the scheduler does for volumes that wait for their first consumer: say on which node it is."""
    api = _api(node)
    deadline = time.monotonic() + CLAIMS_LIMIT
    while claims and time.monotonic() < deadline:
        for name in sorted(claims):
            path = f"/api/v1/namespaces/{tenant.namespace}/persistentvolumeclaims/{name}"
            with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
                claim = api.get(path)
                if claim["status"].get("phase") == "Pending":
                    api.patch(path, {"metadata": {"annotations": {SELECTED: node.name}}})
                claims.discard(name)
        time.sleep(RETRY)


def _follow(node: NodeSpec, tenant: Tenant, news: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Tell how the pod is, whenever that changes; ``gone`` is that there is no such pod any more."""
    api = _api(node)
    where = f"/api/v1/namespaces/{tenant.namespace}/pods?fieldSelector=metadata.name%3D{tenant.name}"
    while True:
        try:
            listing = api.get(where)
            pods = [pod for pod in listing["items"] if pod["metadata"]["uid"] == tenant.uid]
            news.put(pods[0] if pods else {"gone": True, "status": {}})
            query = f"&watch=true&timeoutSeconds={ROUND}&resourceVersion={listing['metadata']['resourceVersion']}"
            for line in api.stream(where + query, idle=ROUND + 10.0):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    break
                if event["object"]["metadata"].get("uid") == tenant.uid:
                    gone = {"gone": True} if event["type"] == "DELETED" else {}
                    news.put(event["object"] | gone)
        except (ApiError, OSError, http.client.HTTPException, ValueError):
            time.sleep(RETRY)


def _set_deadline(api: Api, tenant: Tenant) -> None:
    """Let the kubelet end the pod: its time is up."""
    with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
        metadata = {"uid": tenant.uid, "annotations": {ending.EVICTED: "true"}}
        api.patch(tenant.path, {"metadata": metadata, "spec": {"activeDeadlineSeconds": 1}})


def _retire(api: Api, node: NodeSpec) -> None:
    """From now on the archive answers for this node. The provisioner does the same for nodes that were killed."""
    with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
        Kubernetes(api).set_node_status(node.name, retirement(str(node.cluster.ranges.node(HEAD)), timestamp()))
