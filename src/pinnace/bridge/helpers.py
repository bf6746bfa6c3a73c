"""The pods that help with jobs (see ``pods``): made, limited in number, and told when to end."""

from __future__ import annotations

import http
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.bridge import pods
from pinnace.bridge.connections import own_directory
from pinnace.bridge.files import StagingError, replace_file
from pinnace.bridge.slurmjob import seconds_of
from pinnace.errors import ApiError
from pinnace.validation import api_name, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.pods import Identity
    from pinnace.bridge.policy import Policy
    from pinnace.bridge.slurmjob import Job, Object
    from pinnace.kube.client import Api
    from pinnace.slurm.backend import Backend

COPYING = 600.0  # seconds for a pod that copies
QUOTA = "exceeded quota"
READING = 15.0  # seconds in which a pod has told what a job has left
OTHERS = 4  # one part in so many of the pods that follow output is for other namespaces
LAST_WORDS = "tailLines=5&limitBytes=2000"


class Helpers:
    """Without an image there are none. At most ``most`` follow output at once, and not all for one namespace."""

    def __init__(
        self, api: Callable[[], Api], policy: Policy, *, image: str, most: int, identity: Identity | None
    ) -> None:
        self._api, self._policy, self._image, self._most, self._identity = api, policy, image, most, identity
        # uids of jobs that have one that follows: until when it counts, and their namespace
        self._followed: dict[str, tuple[float, str]] = {}

    def copy(self, job: Job, name: str, what: Object) -> str:
        """Let a pod copy. What it waits for; nothing if it has copied."""
        if not self._image:
            raise StagingError("volumes need the bridge's helper pods (`pinnace bridge --image`)")
        self._policy.check_volume(what["entry"]["volume"])
        if refusal := why_not_mounted(what["directory"]):
            raise StagingError(refusal)
        path = pods_path(job)
        if refusal := self._refused(path, pods.copier(job, name, self._image, identity=self._identity, **what)):
            if QUOTA in refusal:  # others may end
                return f"pod {name}: {refusal}"
            raise StagingError(f"pod {name}: {refusal}")
        found = self._api().get(f"{path}/{api_name(name)}")
        if job.uid not in {owner["uid"] for owner in found["metadata"].get("ownerReferences", ())}:
            raise StagingError(f"there is another pod called {name}")
        phase = found["status"].get("phase")
        if phase == "Failed":
            tail = self._api().get(f"{path}/{api_name(name)}/log?{LAST_WORDS}")
            raise StagingError(f"pod {name}: {printable(str(tail), 500)}")
        if phase != "Succeeded" and time.time() - seconds_of(found["metadata"]["creationTimestamp"]) > COPYING:
            raise StagingError(f"pod {name} has not ended after {COPYING:.0f} s: see `kubectl describe pod`")
        return "" if phase == "Succeeded" else f"pod {name} is to copy: {phase}"

    def forget(self, job: Job, backend: Backend) -> None:
        """Before a job begins, and when its object is gone."""
        self._followed.pop(job.uid, None)
        if backend.files:
            mark_of(job).unlink(missing_ok=True)

    def why_no_logs(self, job: Job, backend: Backend) -> str:
        """Why there will be no pod that follows the output of a job, if somebody wants one."""
        if not job.spec.get("logs", True):
            return ""
        if not backend.files:
            return "this bridge does not see the files of that cluster"
        return "" if self._image else "this bridge has no image for pods that follow output (`pinnace bridge --image`)"

    def follow(self, job: Job, backend: Backend, *, until: float = float("inf")) -> str:
        """Let a pod follow the output of a job, if there is room for one more. What the API has against it."""
        if not (backend.files and self._image and job.spec.get("logs", True)) or job.uid in self._followed:
            return ""
        clock = time.monotonic()
        self._followed = {uid: about for uid, about in self._followed.items() if about[0] > clock}
        of_namespace = sum(namespace == job.namespace for _, namespace in self._followed.values())
        if len(self._followed) >= self._most or of_namespace >= max(1, self._most - self._most // OTHERS):
            return ""
        self._followed[job.uid] = (until, job.namespace)
        mark = mark_of(job)
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        patterns = [path for path in (job.status.get("stdout"), job.status.get("stderr")) if path]
        for directory in pods.directories_of(patterns, str(mark)):
            if refusal := why_not_mounted(directory):
                return refusal
        pod = pods.follower(job, self._image, patterns, str(mark), identity=self._identity)
        return self._refused(pods_path(job), pod)

    def end(self, job: Job, backend: Backend, exit_of: tuple[int, int]) -> str:
        """Tell the pod that follows the output that there will be no more of it, and how the job ended. As above."""
        if backend.files and self._image:
            code, number = exit_of
            replace_file(mark_of(job), f"{code or (128 + number if number else 0)}\n")
        self._followed.pop(job.uid, None)
        return self.follow(job, backend, until=time.monotonic() + READING)

    def _refused(self, path: str, pod: Object) -> str:
        """Make a pod. Why the API does not want it, by its rules or by a quota: that is no reason to stop."""
        try:
            self._api().create(path, pod)
        except ApiError as error:
            if error.code not in {http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY}:
                raise
            return printable(str(error), 500)
        return ""


def pods_path(job: Job) -> str:
    return f"/api/v1/namespaces/{api_name(job.namespace)}/pods"


def why_not_mounted(directory: str) -> str:
    """Why a helper pod does not get a directory of the node: only those are mounted that are the user's own."""
    try:
        owner = Path(directory).stat().st_uid
    except OSError as error:
        return f"{printable(directory, 200)}: {error.strerror}"
    if owner != os.getuid():
        return f"{printable(directory, 200)} is not a directory of the bridge's user, so pods do not mount it"
    return ""


def mark_of(job: Job) -> Path:
    """The file whose appearance ends the pod that follows a job's output, wherever that pod runs."""
    return Path(own_directory()) / ".ends" / job.uid
