"""Pods that may follow one another in the same job: so alike that Slurm could not tell their jobs apart.

A job that lasts a second costs Slurm and the node more than it gives. So a job whose pod has succeeded may take another
that waits: one of the same owner, for which the very same options would be given to sbatch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import SCHEDULER
from pinnace.errors import UsageError
from pinnace.provisioner.selection import selection
from pinnace.provisioner.translation import job_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.provisioner.settings import Settings

    Object = dict[str, Any]

SEVERAL = {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-core", "ntasks-per-gpu"}
OF_ONE_JOB = {"begin", "deadline", "dependency", "hold"}


def controller(pod: Object) -> str:
    """The uid of what made a pod; nothing if a person did."""
    return next((owner["uid"] for owner in pod["metadata"].get("ownerReferences", ()) if owner.get("controller")), "")


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


def waits(pod: Object) -> bool:
    """Whether a pod is to be a job and has no node yet."""
    spec = pod["spec"]
    return (
        spec.get("schedulerName") == SCHEDULER
        and not spec.get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
        and pod["status"].get("phase") == "Pending"
    )
