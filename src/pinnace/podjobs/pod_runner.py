"""A node that is there for one pod: it takes the pod to itself, and ends when the pod has ended.

A short pod may be followed by others of its kind (see ``podjobs.reuse``).

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
import math
import os
import queue
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from pinnace.devices.plugin_api import DIRECTORY, registered
from pinnace.errors import ApiError
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE, Api, timestamp
from pinnace.kube.pods import FAILED, exit_code, has_ended
from pinnace.kube.watch import Changed, Listed, watch
from pinnace.podjobs import head_access, pod_status
from pinnace.podjobs.container_status import ContainerdStatus, fits_twice, is_completed
from pinnace.podjobs.held_pods import HeldPods
from pinnace.podjobs.joining import EVICTED
from pinnace.podjobs.pod_api import PodApi
from pinnace.podjobs.reconciler import retirement
from pinnace.podjobs.reuse import JobReuse, bind
from pinnace.podjobs.submission import claim_names, pod_reference
from pinnace.spec import HEAD
from pinnace.timeline.recorder import StepName

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.kube.access import Access
    from pinnace.podjobs.start_throttle import StartSlot
    from pinnace.spec import ClusterSpec, NodeSpec, PodReference
    from pinnace.timeline.recorder import Recorder

EVICT_LIMIT = 25.0  # seconds; after 30 (KillWait) Slurm kills what is left of a cancelled job
RETIRE_INTERVAL = 0.5  # seconds
API_RETRY_PAUSE = 0.1  # seconds
CONTAINERD_INTERVAL = 0.02  # seconds between looks at what containerd has noted
PREPARATION = 1.2  # seconds that a kubelet has to prepare a pod before the one before it is expected to end
DURATIONS = 3  # pods by which the end of the next is expected: it takes no longer than any of them
MAX_EXPECTED = 15.0  # seconds; pods that take longer are bound when the one before has ended
SEARCH_INTERVAL = 0.3  # seconds between looks for a pod that could be bound early
CLAIMS_LIMIT = 60.0  # seconds
DEVICES_LIMIT = 60.0  # seconds for the kubelet to start and to hear of its devices
DEVICES_INTERVAL = 0.02  # seconds
DEVICE_PLUGINS = DIRECTORY.name
SELECTED = "volume.kubernetes.io/selected-node"


class PodRunner:
    """The pods of a node: the one that it was made for, and those that follow it.

    ``containerd`` is containerd's directory on the host.
    """

    def __init__(self, node: NodeSpec, turn: StartSlot | None, containerd: Path, timeline: Recorder) -> None:
        if node.pod is None:
            raise ValueError("this node is for no pod")
        self.node, self.pod, self.turn, self.timeline = node, node.pod, turn, timeline
        self.containerd = ContainerdStatus(containerd, node.scratch / "kubelet")
        self.access = _access(node.cluster)
        self.api = Api(self.access)
        self.news: queue.SimpleQueue[Listed | Changed | None] = queue.SimpleQueue()
        self.evicted = threading.Event()
        self.reuse = JobReuse(node, self.api)
        self.held = HeldPods(node.scratch / "kubelet")
        self.next: dict[str, Any] | None = None  # bound already, and held until the present pod has ended
        self.durations: deque[float] = deque(maxlen=DURATIONS)  # in seconds, of the last pods
        self.next_search = 0.0  # not before

    def evict(self) -> None:
        """From another thread: the pod is to end, and no other follows."""
        self.evicted.set()
        self.news.put(None)

    def run(self) -> int:
        """The exit code of the last pod, when it has ended."""
        self.held.clear()
        self.containerd.begin()
        with self.timeline.step(StepName.BIND):
            pod = _take(self.api, self.pod, self.node)
        watch(self.access, "pods", self.news.put, path=f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node.name}")
        if pod and pod["spec"]["nodeName"] != self.node.name:
            pod = self._bind_next(pod)
        elif pod and has_ended(pod):  # we were started again, and it may have been followed
            pod = next(iter(self.reuse.pods_on_node()), pod)
        last = pod
        while pod:
            if claims := claim_names(pod):
                work = (Api(self.access), self.node.name, pod_reference(pod), claims)
                threading.Thread(target=_choose_volumes, args=work, daemon=True).start()
            early = fits_twice(pod, self.node.allocation) and self.reuse.is_open
            last = self._live(
                pod, partial(is_completed, exit_code_of=self.containerd.exit_code) if early else has_ended
            )
            pod = self._following(last)
            if last:
                self._note_duration(last)
            if not pod and last and not has_ended(last):
                last = self._live(last)
                pod = self._following(last)
        with contextlib.suppress(*API_FAILURES):
            for earlier in self.reuse.pods_on_node():  # whose end was not reported yet
                self._live(earlier)
        self.reuse.finish()
        code = exit_code(last) if last else 0  # who deletes a pod has not failed
        return code or (EVICTED if self.evicted.is_set() else 0)

    def retire_node(self) -> None:
        """From now on the archive answers for this node. The provisioner does the same for nodes that were killed."""
        with contextlib.suppress(*API_FAILURES):
            retired = retirement(str(self.node.cluster.ranges.node(HEAD)), timestamp())
            PodApi(self.api).set_node_status(self.node.name, retired)

    def keep_node_retired(self) -> None:
        """Until the agent ends us: the kubelet may say once more that its node is there."""
        while True:
            time.sleep(RETIRE_INTERVAL)
            self.retire_node()

    def _following(self, last: dict[str, Any] | None) -> dict[str, Any] | None:
        """The next pod, which may start now: the one that is held, or one that is bound only now."""
        if following := self._released():
            self.reuse.announce(following, last)
            return following
        if not last or exit_code(last) or self.evicted.is_set():
            return None
        return self._bind_next(last)

    def _bind_next(self, last: dict[str, Any]) -> dict[str, Any] | None:
        following = self.reuse.bind_next(last)
        if following:
            self.reuse.announce(following, last)
        return following

    def _note_duration(self, pod: dict[str, Any]) -> None:
        started, ended = self.containerd.started(pod), self.containerd.ended(pod)
        if started and ended:
            self.durations.append(ended - started)

    def _bind_early(self, pod: dict[str, Any]) -> None:
        """Bind the next pod a little before the present one is expected to end, and hold it until then."""
        expected, now = max(self.durations, default=math.inf), time.time()
        if self.next or self.evicted.is_set() or expected > MAX_EXPECTED or now < self.next_search:
            return
        if pod["spec"].get("activeDeadlineSeconds"):  # of the next one, too; its time would pass while it is held
            return
        started = self.containerd.started(pod)
        if started and now >= started + expected - PREPARATION:
            self.next_search = now + SEARCH_INTERVAL
            self.next = self.reuse.bind_next(pod, self.held, self.containerd.last_containers(pod))

    def _released(self) -> dict[str, Any] | None:
        """The pod that was held, as it is now; None if there is none, or it was deleted meanwhile."""
        held, self.next = self.next, None
        if not held:
            return None
        self.held.release(held["metadata"]["uid"])
        with contextlib.suppress(*API_FAILURES):
            return PodApi(self.api).current(held)
        return held

    def _live(
        self, pod: dict[str, Any] | None, done: Callable[[dict[str, Any]], bool] = has_ended
    ) -> dict[str, Any] | None:
        """Follow a pod to its end, and help it there if it has been asked to. None if it was deleted."""
        deadline = math.inf
        while pod is not None and not done(pod):
            if self.evicted.is_set() and deadline == math.inf:
                deadline = time.monotonic() + EVICT_LIMIT
                for ended in filter(None, (pod, self.next)):
                    _set_deadline(self.api, pod_reference(ended))
            if time.monotonic() > deadline:
                return pod
            if done is not has_ended:
                self._bind_early(pod)
            try:
                heard = self.news.get(timeout=self._patience(deadline, done))
            except queue.Empty:
                continue
            if heard:
                pod = self._as_heard(pod, heard)
            if self.turn and (pod is None or pod["status"].get("phase") != "Pending"):
                self.turn.release()
                self.turn = None
        return pod

    def _patience(self, deadline: float, done: Callable[[dict[str, Any]], bool]) -> float | None:
        """How long to wait for news: what containerd notes has to be looked for, while another pod may still follow."""
        if done is not has_ended and self.reuse.is_open:
            return CONTAINERD_INTERVAL
        return None if deadline == math.inf else max(0.0, deadline - time.monotonic())

    def _as_heard(self, pod: dict[str, Any], heard: Listed | Changed) -> dict[str, Any] | None:
        uid = pod["metadata"]["uid"]
        if isinstance(heard, Changed):
            if heard.object["metadata"]["uid"] != uid:
                return pod
            return None if heard.gone else heard.object
        for found in heard.objects:
            if found["metadata"]["uid"] == uid:
                return found
        with contextlib.suppress(*API_FAILURES):  # the list may be older than the pod
            return PodApi(self.api).current(pod)
        return pod


def is_waited_for(cluster: ClusterSpec, reference: PodReference) -> bool:
    """Whether a pod is there and has no node. In doubt it has none: who tries to take it will find out."""
    try:
        pod = Api(_access(cluster)).get(reference.path)
    except ApiError as error:
        return error.code != http.HTTPStatus.NOT_FOUND
    except API_UNREACHABLE:
        return True
    return bool(pod["metadata"]["uid"] == reference.uid and not pod["spec"].get("nodeName"))


def _access(cluster: ClusterSpec) -> Access:
    if found := head_access.access(cluster):
        return found
    raise OSError("the head has not said where the API is")


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
        "cpu": str(node.allocation.cpus or os.cpu_count()),
        "memory": str(node.allocation.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
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


def _take(api: Api, reference: PodReference, node: NodeSpec) -> dict[str, Any] | None:
    """Bind the pod to this node. As it is then: here, or on the node that was faster; None if it is gone."""
    while True:
        try:
            with contextlib.suppress(ApiError):
                api.create("/api/v1/nodes", node_object(node))
            if not _devices_are_known(node):
                _fail_without_devices(api, reference, node)
                return None
            with contextlib.suppress(ApiError):
                bind(api, reference, node.name)
            pod: dict[str, Any] = api.get(reference.path)
        except ApiError as error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
        except API_UNREACHABLE:
            pass
        else:
            if pod["metadata"]["uid"] != reference.uid:
                return None
            if pod["spec"].get("nodeName"):
                return pod
        time.sleep(API_RETRY_PAUSE)


def _devices_are_known(node: NodeSpec) -> bool:
    """Wait until the kubelet has heard what its node offers: it would start the pod without devices otherwise."""
    deadline = time.monotonic() + DEVICES_LIMIT
    while not registered(node.scratch / "kubelet" / DEVICE_PLUGINS).issuperset(node.offer.resources):
        if time.monotonic() > deadline:
            return False
        time.sleep(DEVICES_INTERVAL)
    return True


def _fail_without_devices(api: Api, reference: PodReference, node: NodeSpec) -> None:
    """In the kubelet's words of a pod that cannot have its devices."""
    names = ", ".join(node.offer.resources)
    message = f"Allocate failed: the kubelet has not heard of {names} for {DEVICES_LIMIT:.0f} s"
    with contextlib.suppress(*API_FAILURES):
        metadata = {"namespace": reference.namespace, "name": reference.name, "uid": reference.uid}
        status = {"phase": FAILED, "reason": "UnexpectedAdmissionError", "message": message}
        PodApi(api).set_status({"metadata": metadata}, status)


def _choose_volumes(api: Api, node: str, reference: PodReference, claims: set[str]) -> None:
    """What the scheduler does for volumes that wait for their first consumer: say on which node it is."""
    deadline = time.monotonic() + CLAIMS_LIMIT
    while claims and time.monotonic() < deadline:
        for name in sorted(claims):
            path = f"/api/v1/namespaces/{reference.namespace}/persistentvolumeclaims/{name}"
            with contextlib.suppress(*API_FAILURES):
                claim = api.get(path)
                if claim["status"].get("phase") == "Pending":
                    api.patch(path, {"metadata": {"annotations": {SELECTED: node}}})
                claims.discard(name)
        time.sleep(API_RETRY_PAUSE)


def _set_deadline(api: Api, reference: PodReference) -> None:
    """Let the kubelet end the pod: its time is up."""
    with contextlib.suppress(*API_FAILURES):
        metadata = {"uid": reference.uid, "annotations": {pod_status.EVICTED: "true"}}
        api.patch(reference.path, {"metadata": metadata, "spec": {"activeDeadlineSeconds": 1}})
