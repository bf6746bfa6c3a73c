"""Slurm's states in Kubernetes' words."""

from __future__ import annotations

import pytest

from pinnace.podjobs.pod_status import explanation, failure, read_log, reason
from pinnace.slurm.states import JobState
from unit.podjobs.samples import pod

NOW = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (JobState.CANCELLED, "SlurmCancelled"),
        (JobState.TIMEOUT, "SlurmTimeout"),
        (JobState.OUT_OF_MEMORY, "OOMKilled"),
        (JobState.NODE_FAIL, "SlurmNodeFail"),
        (JobState.PREEMPTED, "SlurmPreempted"),
        (JobState.FAILED, "SlurmFailed"),
        (None, "SlurmJobLost"),
    ],
)
def test_reasons(state: JobState | None, word: str) -> None:
    assert reason(7, state)[0] == word
    assert "job 7" in reason(7, state)[1]


def test_a_node_that_was_told_in_time_ran_out_of_time() -> None:
    assert explanation(7, JobState.FAILED, NOW)["reason"] == "SlurmTimeout"
    assert explanation(7, JobState.CANCELLED, NOW) == {
        "reason": "SlurmCancelled",
        "message": "job 7 was cancelled (CANCELLED)",
        "conditions": [],
    }
    assert explanation(7, JobState.PREEMPTED, NOW)["conditions"][0]["type"] == "DisruptionTarget"


def test_containers_that_ran_were_killed_and_the_others_keep_what_they_said() -> None:
    body = pod(containers=[{"name": "a", "image": "x"}, {"name": "b", "image": "x"}, {"name": "c", "image": "x"}])
    body["status"]["containerStatuses"] = [
        {"name": "a", "state": {"running": {"startedAt": "then"}}, "containerID": "id", "restartCount": 2},
        {"name": "b", "state": {"terminated": {"exitCode": 5}}},
    ]
    status = failure(body, 7, JobState.OUT_OF_MEMORY, NOW)
    assert (status["phase"], status["reason"]) == ("Failed", "OOMKilled")
    a, b, c = status["containerStatuses"]
    assert a["state"]["terminated"] == {
        "exitCode": 137, "reason": "OOMKilled", "startedAt": "then", "finishedAt": NOW, "containerID": "id",
    }  # fmt: skip
    assert a["restartCount"] == 2
    assert b["state"]["terminated"] == {"exitCode": 5}
    assert c["state"]["terminated"]["reason"] == "ContainerStatusUnknown"


def test_what_is_not_the_pods_fault_is_a_disruption() -> None:
    types = {condition["type"] for condition in failure(pod(), 7, JobState.PREEMPTED, NOW)["conditions"]}
    assert "DisruptionTarget" in types
    types = {condition["type"] for condition in failure(pod(), 7, JobState.OUT_OF_MEMORY, NOW)["conditions"]}
    assert "DisruptionTarget" not in types


def test_a_limit_that_is_kept_by_polling_is_read_from_the_log() -> None:
    log = "slurmstepd-n1: error: StepId=21.batch exceeded memory limit (951996416 > 775946240), being killed"
    assert read_log(JobState.FAILED, log) is JobState.OUT_OF_MEMORY
    assert read_log(JobState.FAILED, "") is JobState.FAILED
    assert read_log(JobState.NODE_FAIL, log) is JobState.NODE_FAIL
