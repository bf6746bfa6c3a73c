"""Pods and jobs, as the tests of the provisioner need them."""

from __future__ import annotations

import os
from typing import Any

from pinnace.controlplane.placement import SCHEDULER
from pinnace.podjobs.reconciler import MARK, NUMBER
from pinnace.slurm.jobs import QueuedJob
from pinnace.slurm.states import JobState

CLUSTER = "test"


def pod(
    name: str = "one",
    *,
    job: int | None = None,
    marked: bool = False,
    node: str = "",
    phase: str = "Pending",
    annotations: dict[str, str] | None = None,
    deleted: bool = False,
    **spec: Any,
) -> dict[str, Any]:
    notes = dict(annotations or {})
    if marked or job:
        notes[MARK] = "2026-01-01T00:00:00Z"
    if job:
        notes[NUMBER] = str(job)
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body = {"schedulerName": SCHEDULER, "containers": [{"name": "main", "image": "busybox"}], **spec}
    if node:
        body["nodeName"] = node
    return {"metadata": metadata, "spec": body, "status": {"phase": phase}}


def container(
    cpu: str = "", memory: str = "", *, limit: str = "", extended: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    requests = {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text}
    limits = {"memory": limit} if limit else {}
    limits |= extended or {}
    return {"name": "main", "image": "busybox", "resources": {"requests": requests, "limits": limits}, **more}


def job(number: int, state: JobState = JobState.RUNNING, *, uid: str = "uid-one", reason: str = "None") -> QueuedJob:
    return QueuedJob(
        id=number,
        uid=os.getuid(),
        name="one",
        state=state,
        reason=reason,
        nodes="n1",
        partition="main",
        time_left="59:00",
        time_limit="1:00:00",
        time_used="1:00",
        node_count=1,
        comment=f"pinnace:{CLUSTER}:{uid}:default/one",
    )
