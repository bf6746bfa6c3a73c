"""Reuse of a Slurm job by several pods, one after the other.

A job that lasts a second costs Slurm and the node more than it gives. So a job whose pod has succeeded may run another
that waits: one of the same controller, for which sbatch would get the very same options. Such pods have the same
``reuse_key``.

The node of the job looks for the next pod and binds it. Nobody else has to agree: a pod can be bound once, and whoever
is first has it, be it this node, another, or the node of the job that was submitted for it. A job that is left without
its pod looks for another in the same way, or is cancelled by the provisioner while it is pending.
"""

from __future__ import annotations

import contextlib
import http
import json
import os
import queue
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import SCHEDULER
from pinnace.errors import PinnaceError, UsageError
from pinnace.kube import pods
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE, ignoring
from pinnace.kube.events import NORMAL
from pinnace.podjobs.node_selection import selection
from pinnace.podjobs.pod_api import PodApi
from pinnace.podjobs.reconciler import NUMBER
from pinnace.podjobs.settings import PodJobSettings
from pinnace.podjobs.submission import comment, job_options, least_time, pod_reference
from pinnace.slurm.commands import Slurm
from pinnace.slurm.times import parse_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinnace.kube.client import Api
    from pinnace.podjobs.held_pods import HeldPods
    from pinnace.spec import NodeSpec, PodReference

    Object = dict[str, Any]

SEVERAL_TASKS = {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-core", "ntasks-per-gpu"}
OF_ONE_JOB = {"begin", "deadline", "dependency", "hold"}  # options that mean this very submission
LEAST_OF_LIMIT = 0.9  # the part of a job's time limit that its last pod has, if the pod does not say how long it needs
MAX_CANDIDATES = 16  # pods of which one is chosen
RENAME_INTERVAL = 5.0  # seconds between changes of a job's name
RENAME_LIMIT = 5.0  # seconds that the end of a node waits for the last of them
SEARCH_DELAYS = (0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4)  # seconds before each search: a Job makes a pod when one has ended


def reuse_key(pod: Object, owners: Sequence[Object], settings: PodJobSettings, given: Sequence[str]) -> str:
    """Equal for pods that may run in the same job; empty for a pod that has its job to itself."""
    controller = pods.controller_uid(pod)
    if not controller or not settings.reuse_seconds:
        return ""
    try:
        options = job_options(pod, owners, settings, given)
        _, labels = selection(pod)
    except UsageError:
        return ""
    if options.keys() & (SEVERAL_TASKS | OF_ONE_JOB):
        return ""
    asked = {name: value for name, value in options.items() if name != "job-name"}
    return json.dumps([pod["metadata"]["namespace"], controller, asked, labels], sort_keys=True)


def reuse_window(pod: Object, owners: Sequence[Object], settings: PodJobSettings, given: Sequence[str]) -> float:
    """For how many seconds after its start a job takes more pods, so that the last has its time before the limit."""
    asked = job_options(pod, owners, settings, given).get("time")
    if not asked:
        return settings.reuse_seconds
    try:
        limit = 60 * parse_limit(asked)
    except ValueError:  # without an end
        return settings.reuse_seconds
    return max(0.0, min(settings.reuse_seconds, limit - (least_time(pod) or LEAST_OF_LIMIT * limit)))


def is_waiting(pod: Object) -> bool:
    """Whether a pod is to be a job and has no node yet."""
    spec = pod["spec"]
    ours = spec.get("schedulerName") == SCHEDULER
    return bool(
        ours and not spec.get("nodeName") and not pods.is_being_deleted(pod) and pods.phase(pod) == pods.PENDING
    )


def bind(api: Api, reference: PodReference, node: str, annotations: dict[str, str] | None = None) -> None:
    """Give a pod its node, as a scheduler does; the pod gets the annotations."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    metadata = {"name": reference.name, "uid": reference.uid, "annotations": annotations or {}}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    api.request("POST", f"{reference.path}/binding", body)


class JobReuse:
    """On the node of a job: finds the next pod for it, for as long as the job takes more."""

    def __init__(self, node: NodeSpec, api: Api) -> None:
        self.node, self.api = node, api
        provisioning = node.cluster.provisioning
        self.settings = PodJobSettings.from_json(provisioning.settings) if provisioning else PodJobSettings()
        self.given = provisioning.options if provisioning else ()
        self.begin = time.monotonic()
        self.until = self.begin + self.settings.reuse_seconds
        self.job = os.environ.get("SLURM_JOB_ID", "0")
        self.owners: list[Object] | None = None
        self.previous: list[str] = []  # names of the pods that this job has run
        self.name = JobName(int(self.job), Slurm().rename)
        self.random = random.SystemRandom()

    @property
    def is_open(self) -> bool:
        """Whether the job still takes more pods."""
        return time.monotonic() < self.until

    def pods_on_node(self) -> list[Object]:
        """The pods that are jobs, are bound to this node and have not ended, the first first.

        A DaemonSet may have put others on it.
        """
        selector = f"spec.nodeName%3D{self.node.name},spec.schedulerName%3D{SCHEDULER}"
        listing = self.api.get(f"/api/v1/pods?fieldSelector={selector}")
        found = [pod for pod in listing["items"] if not pods.is_terminal(pod)]
        return sorted(found, key=lambda pod: str(pod["status"].get("startTime", "~")))

    def bind_next(self, pod: Object, held: HeldPods | None = None, after: Sequence[str] = ()) -> Object | None:
        """Bind a pod to this node that waits and has the key of this one. None if there is none, or it is too late.

        Its controller may not have made it yet, so it is looked for more than once. With ``held``, it is held, until
        the containers ``after`` have ended, if there are any.
        """
        if not self.is_open:
            return None
        with contextlib.suppress(*API_FAILURES):
            if self.owners is None:
                self.owners = PodApi(self.api).owners(pod)
            key = self._key(pod)
            if key:
                self.until = self.begin + reuse_window(pod, self.owners, self.settings, self.given)
            for delay in SEARCH_DELAYS if key and self.is_open else ():
                time.sleep(delay)
                candidate = self._candidate(pod, key)
                if candidate and (bound := self._bind(candidate, held, after)):
                    return bound
                if not candidate and not pods.is_terminal(pod):
                    return None  # its controller makes another when it has ended
        return None

    def _candidate(self, pod: Object, key: str) -> Object | None:
        """One that waits and has this key, by chance: other nodes that look choose others."""
        waiting = self._waiting(pod)
        self.random.shuffle(waiting)
        return next((other for other in waiting if self._key(other) == key), None)

    def _key(self, pod: Object) -> str:
        return reuse_key(pod, self.owners or (), self.settings, self.given)

    def _waiting(self, pod: Object) -> list[Object]:
        """Pods that wait in the same namespace. For a pod of a Job only those of that Job: there may be many others."""
        selector = f"spec.schedulerName%3D{SCHEDULER},spec.nodeName%3D,status.phase%3D{pods.PENDING}"
        where = (
            f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?fieldSelector={selector}&limit={MAX_CANDIDATES}"
        )
        if job := pod["metadata"].get("labels", {}).get(pods.JOB_UID_LABEL):
            where += f"&labelSelector={pods.JOB_UID_LABEL}%3D{job}"
        found: list[Object] = self.api.get(where)["items"]
        return [other for other in found if is_waiting(other)]

    def _bind(self, pod: Object, held: HeldPods | None, after: Sequence[str]) -> Object | None:
        """The pod as it is on this node; None if another was faster, or it is gone."""
        uid = pod["metadata"]["uid"]
        if held:
            held.hold(uid, after)
        with ignoring(http.HTTPStatus.CONFLICT, http.HTTPStatus.NOT_FOUND):
            bind(self.api, pod_reference(pod), self.node.name, {NUMBER: self.job})
            return pod | {"spec": pod["spec"] | {"nodeName": self.node.name}}
        if held:
            held.release(uid)
        return None

    def announce(self, pod: Object, before: Object | None) -> None:
        """Show in Slurm and on the pod where it runs, after which one. Nothing depends on it."""
        if before and before["spec"].get("nodeName") == self.node.name:
            self.previous.append(before["metadata"]["name"])
        parts = [comment(self.node.cluster.name, pod, self.owners or ())]
        parts += ["after", *self.previous] if self.previous else []
        self.name.change(pod["metadata"]["name"], " ".join(parts))
        with contextlib.suppress(PinnaceError, *API_UNREACHABLE):
            PodApi(self.api).event(pod, NORMAL, "Followed", f"runs in job {self.job}, which had room for it")

    def finish(self) -> None:
        """No other pod follows: the job keeps the name of the last."""
        self.name.finish()


class JobName:
    """The name and comment of a job in Slurm, which follow its pods: in a thread, and not more often than is read.

    Pods may last a second, and a controller of Slurm has all users' jobs to care for.
    """

    def __init__(self, job: int, rename: Callable[[int, str, str], None], interval: float = RENAME_INTERVAL) -> None:
        self.job, self.rename, self.interval = job, rename, interval
        self.wanted: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self.finished = threading.Event()
        self.thread: threading.Thread | None = None

    def change(self, name: str, comment: str) -> None:
        self.wanted.put((name, comment))
        if self.thread is None:
            self.thread = threading.Thread(target=self._follow, name="job-name", daemon=True)
            self.thread.start()

    def finish(self) -> None:
        """What was wanted last is done now, or within a limit."""
        if self.thread:
            self.wanted.put(None)
            self.finished.set()
            self.thread.join(RENAME_LIMIT)

    def _follow(self) -> None:
        heard: list[tuple[str, str] | None] = []
        while None not in heard:
            heard = [self.wanted.get()]
            while not self.wanted.empty():
                heard.append(self.wanted.get())
            if names := [wanted for wanted in heard if wanted]:
                with contextlib.suppress(PinnaceError):
                    self.rename(self.job, *names[-1])
            self.finished.wait(self.interval)
