"""Creates the helper pods of jobs (see ``pods``), limits their number, and signals their end."""

from __future__ import annotations

import http
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.bridge import pods
from pinnace.bridge.connections import own_directory
from pinnace.bridge.files import replace_file
from pinnace.bridge.slurmjob import seconds_of
from pinnace.errors import ApiError, StagingError
from pinnace.validation import api_name, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.pods import PodUser
    from pinnace.bridge.policy import Policy
    from pinnace.bridge.slurmjob import Object, SlurmJob
    from pinnace.kube.client import Api
    from pinnace.slurm.backend import Backend

COPY_TIMEOUT = 600.0  # seconds for a copy pod
QUOTA_MESSAGE = "exceeded quota"
FINAL_LOG_TIME = 15.0  # seconds for which the log pod of an ended job counts
OTHER_NAMESPACES_SHARE = 4  # one in four log pods is reserved for other namespaces
LOG_TAIL = "tailLines=5&limitBytes=2000"


class HelperPods:
    """The helper pods: none without an image; at most ``max_logs`` follow output, and not all for one namespace."""

    def __init__(
        self, api: Callable[[], Api], policy: Policy, *, image: str, max_logs: int, user: PodUser | None
    ) -> None:
        self._api, self._policy, self._image, self._max_logs, self._user = api, policy, image, max_logs, user
        # By the UID of a job: until when its log pod counts, and the namespace.
        self._followed: dict[str, tuple[float, str]] = {}

    def copy(self, job: SlurmJob, name: str, what: Object) -> str:
        """Copy with a pod. Returns what it waits for; empty when it has copied."""
        if not self._image:
            raise StagingError("volumes need the bridge's helper pods (`pinnace bridge --image`)")
        self._policy.check_volume(what["entry"]["volume"])
        if refusal := mount_refusal(what["directory"]):
            raise StagingError(refusal)
        path = pods_path(job)
        if refusal := self._create(path, pods.copier(job, name, self._image, user=self._user, **what)):
            if QUOTA_MESSAGE in refusal:  # other pods may end
                return f"pod {name}: {refusal}"
            raise StagingError(f"pod {name}: {refusal}")
        found = self._api().get(f"{path}/{api_name(name)}")
        if job.uid not in {owner["uid"] for owner in found["metadata"].get("ownerReferences", ())}:
            raise StagingError(f"there is another pod called {name}")
        phase = found["status"].get("phase")
        if phase == "Failed":
            tail = self._api().get(f"{path}/{api_name(name)}/log?{LOG_TAIL}")
            raise StagingError(f"pod {name}: {printable(str(tail), 500)}")
        if phase != "Succeeded" and time.time() - seconds_of(found["metadata"]["creationTimestamp"]) > COPY_TIMEOUT:
            raise StagingError(f"pod {name} has not ended after {COPY_TIMEOUT:.0f} s: see `kubectl describe pod`")
        return "" if phase == "Succeeded" else f"pod {name} is to copy: {phase}"

    def forget(self, job: SlurmJob, backend: Backend) -> None:
        """Reset the state of a job, before it begins and when its object is deleted."""
        self._followed.pop(job.uid, None)
        if backend.files:
            end_marker(job).unlink(missing_ok=True)

    def log_refusal(self, job: SlurmJob, backend: Backend) -> str:
        """Why there will be no log pod for a job that asks for one; empty if there will be."""
        if not job.spec.get("logs", True):
            return ""
        if not backend.files:
            return "this bridge does not see the files of that cluster"
        return "" if self._image else "this bridge has no image for pods that follow output (`pinnace bridge --image`)"

    def follow(self, job: SlurmJob, backend: Backend, *, until: float = float("inf")) -> str:
        """Create the log pod of a job, unless there are too many. Returns why it is refused, if it is."""
        if not (backend.files and self._image and job.spec.get("logs", True)) or job.uid in self._followed:
            return ""
        clock = time.monotonic()
        self._followed = {uid: about for uid, about in self._followed.items() if about[0] > clock}
        of_namespace = sum(namespace == job.namespace for _, namespace in self._followed.values())
        if len(self._followed) >= self._max_logs or of_namespace >= max(
            1, self._max_logs - self._max_logs // OTHER_NAMESPACES_SHARE
        ):
            return ""
        self._followed[job.uid] = (until, job.namespace)
        mark = end_marker(job)
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        patterns = [path for path in (job.status.get("stdout"), job.status.get("stderr")) if path]
        for directory in pods.directories_of(patterns, str(mark)):
            if refusal := mount_refusal(directory):
                return refusal
        pod = pods.follower(job, self._image, patterns, str(mark), user=self._user)
        return self._create(pods_path(job), pod)

    def end(self, job: SlurmJob, backend: Backend, exit_of: tuple[int, int]) -> str:
        """Signal the end of a job, with its exit code, to its log pod. Returns why that is refused, if it is."""
        if backend.files and self._image:
            code, number = exit_of
            replace_file(end_marker(job), f"{code or (128 + number if number else 0)}\n")
        self._followed.pop(job.uid, None)
        return self.follow(job, backend, until=time.monotonic() + FINAL_LOG_TIME)

    def _create(self, path: str, pod: Object) -> str:
        """Create a pod. Returns why the API refuses it, by a policy or a quota: the job goes on without."""
        try:
            self._api().create(path, pod)
        except ApiError as error:
            if error.code not in {http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY}:
                raise
            return printable(str(error), 500)
        return ""


def pods_path(job: SlurmJob) -> str:
    return f"/api/v1/namespaces/{api_name(job.namespace)}/pods"


def mount_refusal(directory: str) -> str:
    """Why a helper pod may not mount a directory of the node: only the user's own are mounted."""
    try:
        owner = Path(directory).stat().st_uid
    except OSError as error:
        return f"{printable(directory, 200)}: {error.strerror}"
    if owner != os.getuid():
        return f"{printable(directory, 200)} is not a directory of the bridge's user, so pods do not mount it"
    return ""


def end_marker(job: SlurmJob) -> Path:
    """The file whose creation ends a job's log pod, on whatever node that runs."""
    return Path(own_directory()) / ".ends" / job.uid
