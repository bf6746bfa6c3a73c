"""A workload in a cluster: its manifest is applied, its containers' output followed, its exit code found."""

from __future__ import annotations

import contextlib
import http
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.errors import ApiError, ClusterError, CredentialError
from pinnace.kube import pods
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.conditions import is_true
from pinnace.kube.logs import ContainerLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.cluster.kubectl import Kubectl
    from pinnace.cluster.manifest import Manifest

ContainerRun = tuple[str, str, int]  # a pod's uid, a container's name, and how often it was restarted
# Gets "pod/container" and a line of its output; threads call it at the same time. An OSError of it changes nothing.
OnLine = Callable[[str, str], None]

FINITE = {"Job", "Pod"}
ENDLESS = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "CronJob"}
API_TIMEOUT = 5.0  # seconds for one answer
FOLLOW_INTERVAL = 0.1  # seconds between looks at the objects
APPLY_LIMIT = 300.0  # seconds for kubectl apply
LOG_END_LIMIT = 10.0  # seconds for the last lines of a container that has ended
LOG_RETRY_INTERVAL = 0.2  # seconds until a log is asked for again that could not be had, or broke off


@dataclass(frozen=True, kw_only=True)
class AppliedObject:
    """An object of the workload."""

    kind: str
    namespace: str
    name: str


def parse_applied(text: str) -> list[AppliedObject]:
    """What ``kubectl apply -o json`` printed."""
    document = json.loads(text)
    items = document["items"] if document["kind"] == "List" else [document]
    return [
        AppliedObject(
            kind=item["kind"],
            namespace=item["metadata"].get("namespace", ""),
            name=item["metadata"]["name"],
        )
        for item in items
    ]


class Workload:
    """The objects of one manifest, while they run."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self._api = Api(kubectl.kubeconfig, timeout=API_TIMEOUT)
        self.objects: list[AppliedObject] = []
        self._codes: dict[AppliedObject, int] = {}  # of those that have ended; they may be deleted afterwards
        self._followers: dict[ContainerRun, threading.Thread] = {}
        self._over = threading.Event()

    def apply(self, manifest: Manifest) -> None:
        """Run ``kubectl apply``; ClusterError has its own words if it refuses."""
        args = ["apply", "-f", manifest.filename, "-o", "json"]
        result = self.kubectl.run(*args, stdin=manifest.content or "", check=False, timeout=APPLY_LIMIT)
        if result.returncode:
            raise ClusterError(f"kubectl apply -f {manifest.source}: {result.stderr.strip()}")
        self.objects = parse_applied(result.stdout)

    @property
    def endless(self) -> bool:
        """Whether nothing in it ever ends by itself."""
        kinds = {applied.kind for applied in self.objects}
        return not kinds & FINITE and bool(kinds & ENDLESS)

    def namespace_of(self, resource: str) -> str:
        """Where an object of the workload is, named as ``kind/name``; empty if it has none of that name."""
        name = resource.partition("/")[2]
        return next((applied.namespace for applied in self.objects if applied.name == name), "")

    def follow(self, on_line: OnLine, check_alive: Callable[[], None], enough: Callable[[], bool] | None = None) -> int:
        """Give every line that the workload's containers print, until the workload has ended; return its exit code.

        ``check_alive`` is called when the API does not answer, or not as it should; it raises if the cluster has ended.
        ``enough`` says that the workload has done what it was run for, though it goes on.
        """
        try:
            return self._follow(on_line, check_alive, enough)
        finally:
            self._over.set()
            self._api.close()

    def _follow(self, on_line: OnLine, check_alive: Callable[[], None], enough: Callable[[], bool] | None) -> int:
        namespaces = {applied.namespace for applied in self.objects if applied.kind in FINITE | ENDLESS}
        while True:
            is_enough = enough is not None and enough()  # first: containers that have ended by then are seen below
            try:
                found = [pod for namespace in namespaces for pod in self._pods(namespace)]
                running = {run for pod in found for run in self._follow_containers(pod, on_line)}
                code = self._exit_code(found, stays=self.endless or enough is not None)
            except API_FAILURES as error:
                check_alive()
                if isinstance(error, CredentialError):
                    self._read_kubeconfig()
            else:
                if code is not None or is_enough:
                    self._wait_for_output(self._followers.keys() - running)
                    return code or 0
            time.sleep(FOLLOW_INTERVAL)

    def _read_kubeconfig(self) -> None:
        """Read it again: whatever gives the credentials may have changed it, as ours does when a tunnel has to move."""
        self._api.close()
        with contextlib.suppress(*API_FAILURES):
            self._api = Api(self.kubectl.kubeconfig, timeout=API_TIMEOUT)

    def _wait_for_output(self, runs: Iterable[ContainerRun]) -> None:
        """The last lines of containers that have ended may still be on their way."""
        deadline = time.monotonic() + LOG_END_LIMIT
        for run in runs:
            self._followers[run].join(max(0.0, deadline - time.monotonic()))

    def _pods(self, namespace: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return items

    def _exit_code(self, found: list[dict[str, Any]], *, stays: bool) -> int | None:
        """The workload's exit code; None while it goes on."""
        for applied in self.objects:
            if applied.kind in FINITE and applied not in self._codes:
                own = [pod for pod in found if pod["metadata"]["namespace"] == applied.namespace]
                code = self._pod_exit_code(applied, own) if applied.kind == "Pod" else self._job_exit_code(applied, own)
                if code is not None:
                    self._codes[applied] = code
        if stays:
            for pod in found:  # what else it lacks, another part of it may still bring
                self.stuck(pod, pods.NO_IMAGE)
        finite = {applied for applied in self.objects if applied.kind in FINITE}
        if not finite:
            return None if stays else 0
        return max(self._codes.values()) if finite == self._codes.keys() else None

    def _pod_exit_code(self, applied: AppliedObject, found: list[dict[str, Any]]) -> int | None:
        pod = next((pod for pod in found if pod["metadata"]["name"] == applied.name), None)
        if pod is None:
            raise deleted(applied)
        if pods.is_terminal(pod):
            return pods.last_exit_code([pod])
        self.stuck(pod)
        return None

    def _job_exit_code(self, applied: AppliedObject, found: list[dict[str, Any]]) -> int | None:
        job = self._get_job(applied)
        own = [pod for pod in found if pods.belongs_to_job(pod, applied.name)]
        if is_true(job, "Complete"):
            return 0
        if is_true(job, "Failed"):
            return pods.last_exit_code(own) or 1
        for pod in own:
            self.stuck(pod)
        return None

    def _get_job(self, applied: AppliedObject) -> dict[str, Any]:
        job: dict[str, Any] | None = self._api.get_or_none(
            f"/apis/batch/v1/namespaces/{applied.namespace}/jobs/{applied.name}"
        )
        if job is None:
            raise deleted(applied)
        return job

    @staticmethod
    def stuck(pod: dict[str, Any], reasons: tuple[str, ...] = pods.CANNOT_START) -> None:
        """Raise if a container waits for what will never come, such as an image that no registry has."""
        if why := pods.cannot_start(pod, reasons):
            raise ClusterError(
                f"pod {pod['metadata']['name']} cannot start: {why}",
                hint="Give images that no registry has with --image FILE.",
            )

    def _follow_containers(self, pod: dict[str, Any], on_line: OnLine) -> list[ContainerRun]:
        """Follow the output of all that have begun. Returns those that run."""
        running = []
        for status in pods.container_statuses(pod):
            run = (pod["metadata"]["uid"], status["name"], status.get("restartCount", 0))
            if not {"running", "terminated"} & status["state"].keys():
                continue
            if run not in self._followers:
                arguments = (pod["metadata"]["namespace"], pod["metadata"]["name"], run, on_line)
                self._followers[run] = threading.Thread(target=self._follow_one, args=arguments, daemon=True)
                self._followers[run].start()
            if "running" in status["state"]:
                running.append(run)
        return running

    def _follow_one(self, namespace: str, pod: str, run: ContainerRun, on_line: OnLine) -> None:
        """Give each line once. A log that breaks off is read again, unless the container has begun anew by then."""
        uid, container, restarts = run
        log = ContainerLog(namespace, pod, container)
        ended = False
        while not ended and not self._over.is_set() and (uid, container, restarts + 1) not in self._followers:
            try:
                with contextlib.closing(Api(self.kubectl.kubeconfig, timeout=30.0)) as api:
                    for text in log.lines(api):
                        with contextlib.suppress(OSError):  # that a line cannot be shown says nothing of the API
                            on_line(f"{pod}/{container}", text)
                ended = True
            except API_FAILURES as error:
                ended = isinstance(error, ApiError) and error.code == http.HTTPStatus.NOT_FOUND  # the pod is gone
                self._over.wait(LOG_RETRY_INTERVAL)


def deleted(applied: AppliedObject) -> ClusterError:
    """Somebody has deleted an object that was followed: it has no exit code."""
    return ClusterError(f"{applied.kind} {applied.name} was deleted before it ended")
