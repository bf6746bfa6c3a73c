"""Pods that may follow one another in the same job: so alike that Slurm could not tell their jobs apart.

A job that lasts a second costs Slurm and the node more than it gives. So a job whose pod has succeeded may take another
that waits: one of the same owner, for which the very same options would be given to sbatch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import SCHEDULER
from pinnace.errors import UsageError
from pinnace.podjobs.node_selection import selection
from pinnace.podjobs.submission import controller, job_options, least_time
from pinnace.slurm.times import parse_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.podjobs.settings import Settings

    Object = dict[str, Any]

SEVERAL = {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-core", "ntasks-per-gpu"}
OF_ONE_JOB = {"begin", "deadline", "dependency", "hold"}


def likeness(pod: Object, owners: Sequence[Object], settings: Settings, given: Sequence[str]) -> str:
    """Equal for pods that may follow one another; nothing for a pod that has its job to itself."""
    if not controller(pod) or not settings.reuse_seconds:
        return ""
    try:
        options = job_options(pod, owners, settings, given)
        _, labels = selection(pod)
    except UsageError:
        return ""
    if options.keys() & (SEVERAL | OF_ONE_JOB):
        return ""
    asked = {name: value for name, value in options.items() if name != "job-name"}
    return json.dumps([pod["metadata"]["namespace"], controller(pod), asked, labels], sort_keys=True)


def window(pod: Object, owners: Sequence[Object], settings: Settings, given: Sequence[str]) -> float:
    """For how many seconds after its start a job takes more pods: so that each has its time, or nine tenths of it."""
    asked = job_options(pod, owners, settings, given).get("time")
    if not asked:
        return settings.reuse_seconds
    try:
        limit = 60 * parse_limit(asked)
    except ValueError:  # without an end
        return settings.reuse_seconds
    return max(0.0, min(settings.reuse_seconds, limit - (least_time(pod) or 0.9 * limit)))


def waits(pod: Object) -> bool:
    """Whether a pod is to be a job and has no node yet."""
    spec = pod["spec"]
    return (
        spec.get("schedulerName") == SCHEDULER
        and not spec.get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
        and pod["status"].get("phase") == "Pending"
    )
