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
from pinnace.kube import pods
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE, Api
from pinnace.kube.conditions import is_true

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Line = Callable[[str, str], None]  # who says it, what it says

FINITE = {"Job", "Pod"}
ENDLESS = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "CronJob"}
POLL = 0.1


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
                found = [pod for namespace in namespaces for pod in self._pods(namespace)]
                for pod in found:
                    self._follow_containers(pod, line)
                code = self._verdict(found, stays=self.endless or enough is not None)
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

    def _verdict(self, found: list[dict[str, Any]], *, stays: bool) -> int | None:
        """The workload's exit code; None while it goes on."""
        codes = [self._object_verdict(applied, found) for applied in self.objects if applied.kind in FINITE]
        if stays:
            for pod in found:  # what else it lacks, another part of it may still bring
                self.stuck(pod, pods.NO_IMAGE)
        if not codes:
            return None if stays else 0
        return None if None in codes else max(code for code in codes if code is not None)

    def _object_verdict(self, applied: Applied, found: list[dict[str, Any]]) -> int | None:
        if applied.kind == "Pod":
            pod = next((pod for pod in found if pod["metadata"]["name"] == applied.name), None)
            if pod is None:
                return 1
            return pods.last_exit_code([pod]) if pods.is_terminal(pod) else self.stuck(pod)
        job = self._api.get(f"/apis/batch/v1/namespaces/{applied.namespace}/jobs/{applied.name}")
        own = [pod for pod in found if pods.belongs_to_job(pod, applied.name)]
        if is_true(job, "Complete"):
            return 0
        if is_true(job, "Failed"):
            return pods.last_exit_code(own) or 1
        for pod in own:
            self.stuck(pod)
        return None

    @staticmethod
    def stuck(pod: dict[str, Any], reasons: tuple[str, ...] = pods.CANNOT_START) -> None:
        """A container that cannot start never will: say why instead of waiting."""
        if why := pods.cannot_start(pod, reasons):
            raise ClusterError(
                f"pod {pod['metadata']['name']} cannot start: {why}",
                hint="Give images that no registry has with --image FILE.",
            )

    def _follow_containers(self, pod: dict[str, Any], line: Line) -> None:
        for status in pods.container_statuses(pod):
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
