"""A Slurm job as a step of a pipeline: set up, invoke, clean up; the pattern of Bridge's Kubeflow pipelines.

    with SlurmStep("train", {"script": "...", "options": {"nodes": 2}}) as step:   # set up
        status = step.invoke(print)                                               # raises if the job fails
                                                                                  # cleaned up here

The three can also be three steps of a pipeline, each in a container of its own: they share nothing but the name.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from pinnace.bridge.crds import SLURMJOB
from pinnace.bridge.slurmjob import Job
from pinnace.errors import SlurmError
from pinnace.kube.access import Access
from pinnace.kube.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable

POLL = 0.5
GONE_LIMIT = 120.0  # seconds for the end of a job that is cancelled


class SlurmStep:
    """A SlurmJob that waits for its turn. Without ``access``, the cluster is that of the pod in which this runs."""

    def __init__(
        self, name: str, spec: dict[str, Any] | None = None, *, namespace: str = "", access: Access | None = None
    ) -> None:
        access = access or Access.in_pod()
        self._api = Api(access)
        self._spec = spec or {}
        self._namespace = namespace or access.namespace
        self.name = name

    def _path(self) -> str:
        return SLURMJOB.path(self._namespace, self.name)

    def set_up(self) -> None:
        """Make the job, suspended; everything about it that can be wrong in itself is refused here."""
        body = {"apiVersion": SLURMJOB.api_version, "kind": SLURMJOB.kind, "metadata": {"name": self.name}}
        self._api.request("POST", SLURMJOB.path(self._namespace), {**body, "spec": {**self._spec, "suspend": True}})

    def invoke(self, report: Callable[[str], None] = lambda _state: None) -> dict[str, Any]:
        """Let it go, tell of every state, and give its status when it has ended well."""
        self._api.patch(self._path(), {"spec": {"suspend": False}})
        said = ""
        while True:
            job = Job(self._api.get(self._path()))
            state = str(job.status.get("state", ""))
            if state != said:
                report(state)
                said = state
            if job.finished:
                break
            time.sleep(POLL)
        if not job.succeeded:
            raise SlurmError(f"{self.name}: {state} {job.status.get('message', '')}".strip())
        return job.status

    def clean_up(self) -> None:
        """Delete it, and with it what is left of it in Slurm."""
        deadline = time.monotonic() + GONE_LIMIT
        self._api.delete_if_there(self._path())
        while self._api.get_or_none(self._path()) is not None and time.monotonic() < deadline:
            time.sleep(POLL)

    def __enter__(self) -> Self:
        self.set_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.clean_up()
