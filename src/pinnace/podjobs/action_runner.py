"""The hands of the provisioner: each action done, once more if need be."""

from __future__ import annotations

import contextlib
import http
import logging
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pinnace.errors import ApiError, SlurmError
from pinnace.kube.client import timestamp
from pinnace.podjobs import pod_status, reconciler
from pinnace.podjobs.reconciler import NOT_KNOWN
from pinnace.podjobs.submission import claimed, submitted_for
from pinnace.removal import remove_tree
from pinnace.spec import HEAD, read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.kube.client import Api
    from pinnace.podjobs.reconciler import Action, Memory
    from pinnace.slurm.commands import Accounted, Slurm
    from pinnace.slurm.states import JobState
    from pinnace.spec import ClusterSpec

    Object = dict[str, Any]

COMPONENT = "pinnace-provisioner"
SACCT_INTERVAL = 1.0  # seconds between calls of sacct, at least
STRATEGIC = "application/strategic-merge-patch+json"
PLURALS = {"ReplicaSet": "replicasets", "Deployment": "deployments", "StatefulSet": "statefulsets", "Job": "jobs",
           "CronJob": "cronjobs", "Workflow": "workflows"}  # fmt: skip
GROUP_VERSION = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9]{1,63}")  # none of these kinds is of the core group
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")

log = logging.getLogger("pinnace.podjobs")


class Kubernetes:
    """What the provisioner asks of the API. What is gone is no error."""

    def __init__(self, api: Api) -> None:
        self.api = api

    @staticmethod
    def path(pod: Object) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    def annotate(self, pod: Object, notes: dict[str, str | None]) -> Object | None:
        """That very pod as it is now, if it is still there."""
        body = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": notes}}
        found: list[Object] = []
        self._unless_gone(lambda: found.append(self.api.patch(self.path(pod), body)))
        return found[0] if found else None

    def set_status(self, pod: Object, status: Object) -> bool:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        path = f"{self.path(pod)}/status"
        return self._unless_gone(lambda: self.api.request("PATCH", path, body, content_type=STRATEGIC))

    def current(self, pod: Object) -> Object | None:
        """The pod as it is this moment, if it is still that pod."""
        try:
            found: Object = self.api.get(self.path(pod))
        except ApiError as error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            raise
        return found if found["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def delete_now(self, pod: Object) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._unless_gone(lambda: self.api.request("DELETE", self.path(pod), body))

    def evict(self, pod: Object) -> None:
        """As a drain does it: a PodDisruptionBudget may say not now. What is said of one pod stops no other."""
        metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        try:
            self._unless_gone(lambda: self.api.request("POST", f"{self.path(pod)}/eviction", body))
        except ApiError as error:
            if error.code != http.HTTPStatus.TOO_MANY_REQUESTS:
                log.warning("%s/%s is not evicted: %s", metadata["namespace"], metadata["name"], error)

    def event(self, pod: Object, kind: str, reason: str, text: str) -> None:
        metadata = pod["metadata"]
        now = timestamp()
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"],
                 "uid": metadata["uid"]}  # fmt: skip
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": metadata["namespace"]},
            "involvedObject": about,
            "reason": reason,
            "message": text[:1024],
            "type": kind,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": COMPONENT},
        }
        with contextlib.suppress(ApiError):  # for people: nothing depends on it, and the namespace may be going
            self.api.request("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", body)

    def owners(self, pod: Object) -> list[Object]:
        """To whom a pod belongs, the nearest first: a ReplicaSet and its Deployment, a Job and its CronJob."""
        found: list[Object] = []
        metadata = pod["metadata"]
        while len(found) < 4:
            references = [owner for owner in metadata.get("ownerReferences", ()) if owner.get("controller")]
            where = owner_path(references[0], pod["metadata"]["namespace"]) if references else None
            if where is None:
                return found
            owner = references[0]
            try:
                got = self.api.get(where)
            except ApiError:
                return found
            found.append({"kind": owner["kind"], "metadata": got["metadata"]})
            metadata = got["metadata"]
        return found

    def set_node_status(self, name: str, status: Object) -> None:
        path = f"/api/v1/nodes/{name}/status"
        self._unless_gone(lambda: self.api.request("PATCH", path, {"status": status}, content_type=STRATEGIC))

    def patch_node(self, name: str, body: Object) -> None:
        self._unless_gone(lambda: self.api.patch(f"/api/v1/nodes/{name}", body))

    def delete_node(self, name: str) -> None:
        self._unless_gone(lambda: self.api.request("DELETE", f"/api/v1/nodes/{name}"))

    @staticmethod
    def _unless_gone(work: Callable[[], object]) -> bool:
        try:
            work()
        except ApiError as error:
            if error.code not in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT}:
                raise
            return False
        return True


def owner_path(owner: Object, namespace: str) -> str | None:
    """Where the API has an owner, if it is of a kind that we look at. Tenants write what they like into references."""
    group_version, kind, name = owner["apiVersion"], owner["kind"], owner["name"]
    if kind not in PLURALS or not GROUP_VERSION.fullmatch(group_version) or not NAME.fullmatch(name):
        return None
    return f"/apis/{quote(group_version)}/namespaces/{quote(namespace)}/{PLURALS[kind]}/{quote(name, safe='')}"


class Hands:
    """Does what was planned."""

    def __init__(self, kubernetes: Callable[[], Kubernetes], slurm: Slurm, spec: ClusterSpec, memory: Memory) -> None:
        self._kubernetes = kubernetes
        self.slurm = slurm
        self.spec = spec
        self.memory = memory

    @property
    def kubernetes(self) -> Kubernetes:
        return self._kubernetes()

    def do(self, action: Action) -> None:
        match action:
            case reconciler.Cancel(jobs=jobs, why=why, kill=kill):
                log.info("ending job %s: %s", ", ".join(map(str, jobs)), why)
                self._cancel(jobs, kill=kill)
            case reconciler.Tell(pod=pod, text=text):
                self._tell(pod, text)
            case reconciler.Number(pod=pod, job=job):
                self.kubernetes.annotate(pod, {reconciler.NUMBER: str(job)})
            case reconciler.Fail(pod=pod, job=job, state=state):
                self._fail(pod, job, state)
            case reconciler.Explain(pod=pod, job=job, state=state):
                status = pod_status.explanation(job, state, timestamp())
                self.kubernetes.set_status(pod, status)
                self.kubernetes.event(pod, "Warning", status["reason"], status["message"])
            case reconciler.Remove(pod=pod):
                self.kubernetes.delete_now(pod)
            case reconciler.AskAccounting(jobs=jobs):
                self._ask_accounting(jobs)
            case reconciler.Retire(node=node):
                address = str(self.spec.ranges.node(HEAD))
                self.kubernetes.set_node_status(node, reconciler.retirement(address, timestamp()))
            case reconciler.Forget(node=node):
                self.kubernetes.delete_node(node)
                self._remove_files(node)
            case reconciler.FreeIndex(index=index, node=node):
                holder = read_json(self.spec.node_file(index)) or {}
                if holder.get("name") == node:  # it may have been freed and taken
                    (self.spec.directory / "nodes" / f"{index}.services.json").unlink(missing_ok=True)
                    self.spec.node_file(index).unlink(missing_ok=True)
                self._remove_secrets(node)

    def _cancel(self, jobs: tuple[int, ...], *, kill: bool) -> None:
        """End jobs, if Slurm still says that they are this cluster's."""
        options = ["--signal=KILL", "--full"] if kill else []
        ended = self.slurm.cancel(*jobs, ours=lambda text: claimed(text, self.spec.name) is not None, options=options)
        if left := set(jobs) - set(ended):
            log.warning("left alone, because Slurm does not say that it is ours: job %s", ", ".join(map(str, left)))

    def refused(self, pod: Object, text: str) -> None:
        """Say on the pod what Slurm, or we, have against it."""
        self.kubernetes.event(pod, "Warning", "Refused", text)
        self.kubernetes.set_status(pod, {"conditions": [waiting("SlurmRefused", text)]})

    def _tell(self, pod: Object, text: str) -> None:
        self.kubernetes.set_status(pod, {"conditions": [waiting("SlurmPending", text)]})
        self.memory.told[pod["metadata"]["uid"]] = text

    def _fail(self, pod: Object, job: int, state: JobState | None) -> None:
        """Look once more before a pod is called failed: its kubelet may have had the last word."""
        current = self.kubernetes.current(pod)
        if current is None or pod_status.is_terminal(current):
            return
        state = pod_status.read_log(state, self._job_log(job))
        status = pod_status.failure(current, job, state, timestamp())
        log.info("%s/%s: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], status["message"])
        self.kubernetes.set_status(pod, status)
        self.kubernetes.event(pod, "Warning", status["reason"], status["message"])

    def _job_log(self, job: int) -> str:
        """What Slurm and the node itself have said in the job's output."""
        with contextlib.suppress(OSError):
            return (self.spec.directory / "logs" / f"job-{job}.log").read_text(errors="replace")[-4096:]
        return ""

    def _ask_accounting(self, jobs: tuple[int, ...]) -> None:
        """One call for all. Pods can have us ask again and again, so at least half of the time is for other things."""
        begun = time.monotonic()
        self.memory.ended |= dict.fromkeys(jobs, NOT_KNOWN)
        try:
            self.memory.ended |= {row.id: self._ended(row) for row in self.slurm.sacct(*jobs) if row.id in jobs}
        except SlurmError as error:  # a site may have no accounting
            log.warning("sacct: %s", error)
        now = time.monotonic()
        self.memory.next_accounting = now + max(SACCT_INTERVAL, now - begun)

    def _ended(self, row: Accounted) -> reconciler.Ended:
        claims = (claimed(row.comment, self.spec.name), submitted_for(row.submit_line, self.spec.name))
        return reconciler.Ended(state=row.state, claims=frozenset(filter(None, claims)))

    def _remove_secrets(self, node: str) -> None:
        for suffix in ("crt", "key", "kubeconfig"):
            (self.spec.secrets / f"node-{node}.{suffix}").unlink(missing_ok=True)

    def _remove_files(self, node: str) -> None:
        self._remove_secrets(node)
        for directory in (self.spec.pod_logs(node), self.spec.logs(node), self.spec.ranks(node)):
            remove_tree(directory)
        (self.spec.directory / "logs" / f"{node}.log").unlink(missing_ok=True)


def waiting(reason: str, text: str) -> Object:
    """The condition of a pod that waits."""
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": text,
        "lastTransitionTime": timestamp(),
    }
