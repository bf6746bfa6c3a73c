"""Facts about a pod, read from its object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    Object = dict[str, Any]

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
TERMINAL_PHASES = (SUCCEEDED, FAILED)
# Reasons of a container that waits, and will wait for ever unless somebody changes something.
NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")
CANNOT_START = (*NO_IMAGE, "CreateContainerConfigError", "CreateContainerError")
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"


def path(pod: Object) -> str:
    """Where the API has a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def phase(pod: Object) -> str:
    """Empty while a pod has none: nobody has looked at it yet."""
    return str(pod["status"].get("phase") or "")


def is_terminal(pod: Object) -> bool:
    """Whether no container of a pod runs, or will run again."""
    return phase(pod) in TERMINAL_PHASES


def is_being_deleted(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def has_ended(pod: Object) -> bool:
    """Whether the kubelet is done with a pod. With one that is being deleted, it is when the object is gone."""
    return is_terminal(pod) and not is_being_deleted(pod)


def container_statuses(pod: Object) -> list[Object]:
    """Of the init containers and the containers. Ephemeral ones, for debugging, do not count for how a pod ends."""
    return [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]


def running_containers(pod: Object) -> list[Object]:
    """The statuses of all containers that run, ephemeral ones too."""
    statuses = [*container_statuses(pod), *pod["status"].get("ephemeralContainerStatuses", ())]
    return [status for status in statuses if "running" in status["state"]]


def cannot_start(pod: Object, reasons: tuple[str, ...] = CANNOT_START) -> str:
    """Why a container will never start: the kubelet's reason and message. Empty if there is no such container."""
    for status in container_statuses(pod):
        waiting = status["state"].get("waiting", {})
        if waiting.get("reason") in reasons and waiting.get("message"):
            return f"{waiting['reason']}: {waiting['message']}"
    return ""


def exit_code(pod: Object) -> int:
    """The exit code of one pod, in the order of its containers: the first that is not 0. 0 unless the pod has failed.

    This is what a Slurm job ends with that ran the pod. See ``last_exit_code`` for a workload of several pods.
    """
    if phase(pod) != FAILED:
        return 0
    codes = [int(status["state"].get("terminated", {}).get("exitCode", 0)) for status in container_statuses(pod)]
    return next((code for code in codes if code), 1)


def last_exit_code(pods: Iterable[Object]) -> int:
    """The exit code of a workload, in the order of time: of all containers that failed, the one that ended last.

    Retries of a Job leave several failed pods, of which the last one counts. Init containers do not count.
    """
    pods = list(pods)
    ends = [
        (terminated.get("finishedAt") or "", int(terminated["exitCode"]))
        for pod in pods
        for status in pod["status"].get("containerStatuses", ())
        if (terminated := status["state"].get("terminated")) and terminated["exitCode"]
    ]
    if ends:
        return max(ends)[1]
    return 1 if any(phase(pod) == FAILED for pod in pods) else 0


def controller_of(thing: Object) -> Object | None:
    """The reference to the controller that made a pod, or any object; None if there is none."""
    references = thing["metadata"].get("ownerReferences", ())
    return next((owner for owner in references if owner.get("controller")), None)


def controller_uid(pod: Object) -> str:
    """The uid of the controller that made a pod; empty if a person did."""
    owner = controller_of(pod)
    return str(owner["uid"]) if owner else ""


def belongs_to_job(pod: Object, job: str) -> bool:
    """Whether a pod is of the Job of that name, in the same namespace."""
    labels: dict[str, str] = pod["metadata"].get("labels", {})
    return labels.get(JOB_NAME_LABEL) == job
