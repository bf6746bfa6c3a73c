"""A workload in a cluster: applied, followed, and judged by how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.cluster.kubeconfig import kubectl_environment
from pinnace.errors import ClusterError
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE, Api

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Line = Callable[[str, str], None]  # who says it, what it says

FINITE = {"Job", "Pod"}
ENDLESS = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "CronJob"}
POLL = 0.1
NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")
STUCK = (*NO_IMAGE, "CreateContainerConfigError", "CreateContainerError")


@dataclass(frozen=True, kw_only=True)
class Applied:
    """An object of the workload."""

    kind: str
    namespace: str
    name: str


def parse_applied(text: str) -> list[Applied]:
    """What ``kubectl apply -o json`` printed."""
    document = json.loads(text)
    items = document["items"] if document["kind"] == "List" else [document]
    return [
        Applied(
            kind=item["kind"],
            namespace=item["metadata"].get("namespace", ""),
            name=item["metadata"]["name"],
        )
        for item in items
    ]


class Workload:
    """Objects of one manifest, while they run."""

    def __init__(self, kubeconfig: Path, kubectl: str) -> None:
        self.kubeconfig = kubeconfig
        self.kubectl = kubectl
        self._api = Api(kubeconfig, timeout=5.0)
        self.objects: list[Applied] = []
        self._followed: set[tuple[str, str, int]] = set()
        self._threads: list[threading.Thread] = []

    def apply(self, manifest: str) -> None:
        """``kubectl apply``, with its own words if it refuses."""
        argv = [self.kubectl, "apply", "-f", manifest, "-o", "json"]
        environment = os.environ | kubectl_environment(self.kubeconfig)
        result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=300)
        if result.returncode:
            raise ClusterError(f"kubectl apply -f {manifest}: {result.stderr.strip()}")
        self.objects = parse_applied(result.stdout)

    def offer(self, manifest: str) -> bool:
        """``apply`` in a cluster that is still starting. Whether it was taken: not all may be possible yet."""
        with contextlib.suppress(ClusterError):
            self.apply(manifest)
        return bool(self.objects)

    @property
    def endless(self) -> bool:
        """Whether nothing in it ever ends by itself."""
        kinds = {applied.kind for applied in self.objects}
        return not kinds & FINITE and bool(kinds & ENDLESS)

    def namespace_of(self, resource: str) -> str:
        """Where an object of the workload is, named as ``kind/name``; empty if it has none of that name."""
        name = resource.partition("/")[2]
        return next((applied.namespace for applied in self.objects if applied.name == name), "")

    def follow(self, line: Line, still_there: Callable[[], None], enough: Callable[[], bool] | None = None) -> int:
        """Give every line that the workload's containers print, until it has ended. Gives its exit code.

        ``still_there`` is asked when the API does not answer; it raises if the cluster has ended. ``enough`` says that
        the workload has done what it was run for, though it goes on.
        """
        namespaces = {applied.namespace for applied in self.objects if applied.kind in FINITE | ENDLESS}
        while True:
            try:
                pods = [pod for namespace in namespaces for pod in self._pods(namespace)]
                for pod in pods:
                    self._follow_containers(pod, line)
                code = self._verdict(pods, stays=self.endless or enough is not None)
            except API_UNREACHABLE:
                still_there()
                code = None
            if code is not None:
                for thread in self._threads:
                    thread.join(10)
                return code
            if enough and enough():
                return 0
            time.sleep(POLL)

    def _pods(self, namespace: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return items

    def _verdict(self, pods: list[dict[str, Any]], *, stays: bool) -> int | None:
        """The workload's exit code; None while it goes on."""
        codes = [self._object_verdict(applied, pods) for applied in self.objects if applied.kind in FINITE]
        if stays:
            for pod in pods:  # what else it lacks, another part of it may still bring
                self.stuck(pod, NO_IMAGE)
        if not codes:
            return None if stays else 0
        return None if None in codes else max(code for code in codes if code is not None)

    def _object_verdict(self, applied: Applied, pods: list[dict[str, Any]]) -> int | None:
        if applied.kind == "Pod":
            pod = next((pod for pod in pods if pod["metadata"]["name"] == applied.name), None)
            if pod is None:
                return 1
            phase = pod["status"].get("phase")
            return exit_code([pod]) if phase in {"Succeeded", "Failed"} else self.stuck(pod)
        job = self._api.get(f"/apis/batch/v1/namespaces/{applied.namespace}/jobs/{applied.name}")
        own = [pod for pod in pods if _belongs(pod, applied.name)]
        for condition in job["status"].get("conditions", ()):
            if condition["status"] == "True" and condition["type"] == "Complete":
                return 0
            if condition["status"] == "True" and condition["type"] == "Failed":
                return exit_code(own) or 1
        for pod in own:
            self.stuck(pod)
        return None

    @staticmethod
    def stuck(pod: dict[str, Any], reasons: tuple[str, ...] = STUCK) -> None:
        """A container that cannot start never will: say why instead of waiting."""
        for status in _statuses(pod):
            waiting = status["state"].get("waiting", {})
            if waiting.get("reason") in reasons and waiting.get("message"):
                raise ClusterError(
                    f"pod {pod['metadata']['name']} cannot start: {waiting['reason']}: {waiting['message']}",
                    hint="Give images that no registry has with --image FILE.",
                )

    def _follow_containers(self, pod: dict[str, Any], line: Line) -> None:
        for status in _statuses(pod):
            key = (pod["metadata"]["uid"], status["name"], status.get("restartCount", 0))
            if key in self._followed or not {"running", "terminated"} & status["state"].keys():
                continue
            self._followed.add(key)
            arguments = (pod["metadata"]["namespace"], pod["metadata"]["name"], status["name"], line)
            thread = threading.Thread(target=self._follow_one, args=arguments, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _follow_one(self, namespace: str, pod: str, container: str, line: Line) -> None:
        api = Api(self.kubeconfig, timeout=30.0)
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&follow=true"
        with contextlib.suppress(*API_FAILURES):
            for text in api.stream(path):
                line(f"{pod}/{container}", text)


def _statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]


def _belongs(pod: dict[str, Any], job: str) -> bool:
    labels: dict[str, str] = pod["metadata"].get("labels", {})
    return labels.get("batch.kubernetes.io/job-name") == job


def exit_code(pods: list[dict[str, Any]]) -> int:
    """The first exit code that is not 0, of the pod that ended last."""
    ends = [
        (terminated.get("finishedAt") or "", int(terminated["exitCode"]))
        for pod in pods
        for status in pod["status"].get("containerStatuses", ())
        if (terminated := status["state"].get("terminated")) and terminated["exitCode"]
    ]
    if ends:
        return max(ends)[1]
    return 1 if any(pod["status"].get("phase") == "Failed" for pod in pods) else 0
