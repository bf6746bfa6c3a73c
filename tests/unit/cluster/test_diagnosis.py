from __future__ import annotations

import time
from dataclasses import replace

import pytest

from pinnace.cluster.diagnosis import describe_end, describe_pending
from pinnace.slurm.jobs import QueuedJob
from pinnace.slurm.states import JobState


@pytest.mark.parametrize(
    ("state", "message", "hint"),
    [
        ("TIMEOUT", "the time limit (1:00) ended the job 12", "-t"),
        ("OUT_OF_MEMORY", "the job 12 used more memory than it had", "--mem"),
        ("CANCELLED", "the job 12 was cancelled", ""),
        ("NODE_FAIL", "the job 12 ended, because a host failed", ""),
        ("FAILED", "the job of the cluster c has ended", ""),
    ],
)
def test_a_cluster_that_has_ended_says_why(state: str, message: str, hint: str) -> None:
    job = QueuedJob(id=12, state=JobState(state), time_limit="1:00")
    said, advice = describe_end("c", job, ready=True)
    assert said.startswith(message)
    assert hint in advice
    said, _ = describe_end("c", job, ready=False)
    assert "before the cluster was ready" in said


def test_a_cluster_without_a_job_has_just_ended() -> None:
    assert describe_end("c", None, ready=True) == ("the cluster c has ended", "")


def test_a_job_that_waits_says_when_it_may_start_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    job = QueuedJob(id=12, state=JobState.PENDING, reason="Priority", partition="main")
    assert describe_pending(job) == "job 12 is pending in main (Priority)"
    reserved = replace(job, reason="ReqNodeNotAvail, Reserved for maintenance")
    assert describe_pending(reserved).endswith("maintenance); it could run before that with a shorter time limit (-t)")
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert describe_pending(replace(job, start=100)).endswith(", expected to start 1970-01-01T02:01:40")
    finally:
        monkeypatch.undo()
        time.tzset()
