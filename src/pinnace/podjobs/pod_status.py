"""What becomes of a pod whose job has ended, in Kubernetes' words: pure functions.

A pod that ends by itself is its kubelet's to report. This is for the others: the job was cancelled, ran out of time or
memory, was preempted, or its host failed; the kubelet is gone, or does not know why it had to end the pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.kube import pods
from pinnace.kube.conditions import condition
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    Object = dict[str, Any]

EVICTED = "pinnace.dev/evicted"  # an annotation: the node was told by Slurm to end the pod
KILLED = 137  # the exit code of what was killed
# Slurm's state: the pod's reason, what it means. Others are a failure of the job itself.
REASONS = {
    JobState.CANCELLED: ("SlurmCancelled", "was cancelled"),
    JobState.REVOKED: ("SlurmCancelled", "was revoked"),
    JobState.TIMEOUT: ("SlurmTimeout", "reached its time limit"),
    JobState.DEADLINE: ("SlurmTimeout", "reached its deadline"),
    JobState.OUT_OF_MEMORY: ("OOMKilled", "used more memory than it had asked for"),
    JobState.NODE_FAIL: ("SlurmNodeFail", "lost its host"),
    JobState.BOOT_FAIL: ("SlurmNodeFail", "lost its host"),
    JobState.PREEMPTED: ("SlurmPreempted", "was preempted"),
}
DISRUPTIONS = {"SlurmNodeFail", "SlurmPreempted"}  # not the pod's fault: see a Job's podFailurePolicy


def reason(job: int, state: JobState | None) -> tuple[str, str]:
    """The reason in one word, and in a sentence."""
    if state is None:
        return "SlurmJobLost", f"job {job} is gone, and Slurm does not remember how it ended"
    word, text = REASONS.get(state, ("SlurmFailed", "ended, and its node with it"))
    return word, f"job {job} {text} ({state})"


def read_log(state: JobState | None, log: str) -> JobState | None:
    """The state of a job, with what its log adds: limits of memory by polling end a job as a failure, or cancelled."""
    killed = any(
        words in log.lower() for words in ("exceeded memory limit", "exceeded job memory", "oom-kill", "oom_kill")
    )
    return JobState.OUT_OF_MEMORY if killed and state in {JobState.FAILED, JobState.CANCELLED, None} else state


def needs_explanation(pod: Object) -> bool:
    """Whether a pod was ended because Slurm said so, and does not say it yet."""
    evicted = EVICTED in pod["metadata"].get("annotations", {})
    return evicted and pods.phase(pod) == pods.FAILED and pod["status"].get("reason") == "DeadlineExceeded"


def explanation(job: int, state: JobState | None, now: str) -> Object:
    """The change of a status whose containers have been reported already.

    A node that was told before its time limit ends in order, so that Slurm calls its job failed or completed.
    """
    in_time = {JobState.COMPLETED, JobState.FAILED, JobState.COMPLETING}
    word, text = reason(job, JobState.TIMEOUT if state in in_time else state)
    return {"reason": word, "message": text, "conditions": _disruption(word, text, now)}


def failure(pod: Object, job: int, state: JobState | None, now: str) -> Object:
    """The status of a pod whose node died with its job."""
    word, text = reason(job, state)
    status: Object = {"phase": pods.FAILED, "reason": word, "message": text}
    for kind, containers in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")):
        reported = {entry["name"]: entry for entry in pod["status"].get(kind, ())}
        ended = [
            _ended(reported.get(container["name"]), container, word, now)
            for container in pod["spec"].get(containers, ())
            if kind == "containerStatuses" or container["name"] in reported
        ]
        if ended:
            status[kind] = ended
    conditions = [condition(name, "False", "PodFailed", now=now) for name in ("Ready", "ContainersReady")]
    return status | {"conditions": [*conditions, *_disruption(word, text, now)]}


def _disruption(word: str, text: str, now: str) -> list[Object]:
    return [condition("DisruptionTarget", "True", word, text, now=now)] if word in DISRUPTIONS else []


def _ended(entry: Object | None, container: Object, word: str, now: str) -> Object:
    state = (entry or {}).get("state", {})
    if "terminated" in state and entry:
        return entry
    terminated: Object = {"exitCode": KILLED, "reason": "OOMKilled" if word == "OOMKilled" else "Error",
                          "finishedAt": now}  # fmt: skip
    if "running" in state:
        terminated["startedAt"] = state["running"].get("startedAt", now)
        if entry and "containerID" in entry:
            terminated["containerID"] = entry["containerID"]
    else:
        terminated |= {"reason": "ContainerStatusUnknown", "startedAt": now}
    blank = {"name": container["name"], "image": container.get("image", ""), "imageID": "", "restartCount": 0}
    return (entry or blank) | {"ready": False, "started": False, "state": {"terminated": terminated}}
