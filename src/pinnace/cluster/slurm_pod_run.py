"""Running the pod of a Slurm job: on the host that Slurm chose, for as long as the job runs."""

from __future__ import annotations

import contextlib
import http
import http.client
import time
from typing import TYPE_CHECKING, Any

from pinnace.cluster.joining import joined
from pinnace.cluster.slurm_pod import pod_manifest
from pinnace.cluster.workload import AppliedObject, Workload, deleted
from pinnace.errors import ApiError, ClusterError
from pinnace.kube import pods
from pinnace.kube.access import Access
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.logs import ContainerLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinnace.cluster.cluster import Cluster
    from pinnace.cluster.slurm_pod import SlurmPod

POD_POLL_INTERVAL = 0.1  # seconds
POD_END_LIMIT = 20.0  # seconds for the pod's own end
LOST_API_LIMIT = 60.0  # seconds without the API


def run_in_cluster(cluster: Cluster, pod: SlurmPod, on_line: Callable[[str], None]) -> int:
    """Let this host join a cluster as a node, and run the pod on it. Gives the pod's exit code."""
    with joined(cluster) as node:
        return run_on_node(Access.from_file(cluster.kubeconfig), pod, node, on_line)


def run_on_node(access: Access, pod: SlurmPod, node: str, on_line: Callable[[str], None]) -> int:
    """Run the pod on a node of any cluster; ``on_line`` gets its output. Gives the pod's exit code."""
    with contextlib.closing(Api(access)) as api:
        api.create("/api/v1/namespaces", {"metadata": {"name": pod.namespace}})
        with _created(api, pod, node):
            _wait_started(api, pod)
            return _follow(api, pod, on_line)


def _path(pod: SlurmPod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


def _get(api: Api, pod: SlurmPod) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.get(_path(pod))
    except ApiError as error:
        if error.code == http.HTTPStatus.NOT_FOUND:
            raise deleted(AppliedObject(kind="Pod", namespace=pod.namespace, name=pod.name)) from None
        raise
    return found


def _follow(api: Api, pod: SlurmPod, on_line: Callable[[str], None]) -> int:
    """Give what the pod prints until it has ended; its exit code. A connection that breaks is made again."""
    log, lost_since = ContainerLog(pod.namespace, pod.name, "main"), 0.0
    while True:
        try:
            with contextlib.suppress(ApiError):  # why there is no log, the pod itself says
                for text in log.lines(api):
                    with contextlib.suppress(OSError):  # that a line cannot be shown says nothing of the API
                        on_line(text)
            found = _get(api, pod)
            lost_since = 0.0
        except API_FAILURES as error:
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > LOST_API_LIMIT:
                raise ClusterError(f"the cluster does not answer any more: {error}") from error
        else:
            if pods.is_terminal(found):
                return pods.last_exit_code([found])
        time.sleep(POD_POLL_INTERVAL)


@contextlib.contextmanager
def _created(api: Api, pod: SlurmPod, node: str) -> Iterator[None]:
    """Create the pod; however the context is left, the pod is gone afterwards."""
    try:
        api.request("POST", f"/api/v1/namespaces/{pod.namespace}/pods", pod_manifest(pod, node))
    except ApiError as error:
        raise ClusterError(f"the pod was refused: {error}") from error
    try:
        yield
    finally:
        with contextlib.suppress(*API_FAILURES):
            started = api.get(_path(pod))["status"].get("phase") != "Pending"
            api.request("DELETE", _path(pod), None if started else {"gracePeriodSeconds": 0})
            deadline = time.monotonic() + POD_END_LIMIT
            while time.monotonic() < deadline:
                api.get(_path(pod))  # raises when it is gone
                time.sleep(POD_POLL_INTERVAL)


def _wait_started(api: Api, pod: SlurmPod) -> None:
    """Wait until the pod's container has started; raise with the reason if that takes too long."""
    deadline = time.monotonic() + pod.timeout
    while True:
        found = _get(api, pod)
        Workload.stuck(found)
        status: dict[str, Any] = found["status"]
        if status.get("phase") not in {None, "Pending"}:
            return
        if time.monotonic() > deadline:
            states = [of["state"].get("waiting", {}) for of in status.get("containerStatuses", ())]
            why = "; ".join(f"{state.get('reason')} {state.get('message', '')}" for state in states)
            raise ClusterError(f"the pod has not begun within {pod.timeout:.0f} s: {why or 'no node took it'}")
        time.sleep(POD_POLL_INTERVAL)
