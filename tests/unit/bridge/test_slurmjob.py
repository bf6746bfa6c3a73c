"""What a SlurmJob's status says, from what Slurm reports."""

from __future__ import annotations

from typing import Any

from pinnace.bridge.slurmjob import changed, exit_of, is_over, observed, output_path, overall, usage
from pinnace.bridge.tags import tag, tag_in, tagged
from pinnace.slurm.jobs import AccountedJob, QueuedJob
from pinnace.slurm.states import JobState


def report(state: JobState, **more: Any) -> QueuedJob:
    return QueuedJob(id=7, comment=tag("uid", 1), state=state, **more)


def test_a_tag_is_found_before_the_users_own_comment() -> None:
    options = tagged({"nodes": "1", "comment": "mine"}, tag("uid", 2))
    assert list(options.items()) == [("comment", "pinnace-bridge:uid/2 mine"), ("nodes", "1")]
    assert tag_in("pinnace-bridge:uid/2 mine") == tag("uid", 2)
    assert tag_in("pinnace:cluster") == ""


def test_a_job_that_waits_shows_when_it_is_expected() -> None:
    status = observed([report(JobState.PENDING, reason="Priority", submitted=100, start=200)])
    assert status["state"] == "PENDING"
    assert status["reason"] == "Priority"
    assert status["expectedStart"] == "1970-01-01T00:03:20Z"
    assert status["startTime"] is None
    assert status["exit"] is None


def test_a_job_that_was_killed_shows_the_signal() -> None:
    status = observed([report(JobState.FAILED, start=100, end=160, status=9, nodes="n1", node_count=1)])
    assert (status["exitCode"], status["signal"], status["exit"]) == (0, 9, "0:9")
    assert status["endTime"] == "1970-01-01T00:02:40Z"
    assert status["expectedStart"] is None


def test_an_array_is_what_its_tasks_are() -> None:
    running = [report(JobState.COMPLETED, task="0"), report(JobState.RUNNING, task="1"),
               report(JobState.PENDING, task="[2-3]")]  # fmt: skip
    assert overall(running) is JobState.RUNNING
    assert not is_over(running)
    assert observed(running)["tasks"] == {"pending": 1, "running": 1, "succeeded": 1, "failed": 0}
    ended = [report(JobState.COMPLETED, task="0"), report(JobState.FAILED, task="1", status=3 << 8)]
    assert overall(ended) is JobState.FAILED
    assert exit_of(ended) == (3, 0)
    assert is_over(ended)
    completing = [report(JobState.COMPLETED, task="0"), report(JobState.COMPLETING, task="1")]
    assert not is_over(completing)
    assert overall(completing) is JobState.COMPLETING
    assert observed(completing)["tasks"] == {"pending": 0, "running": 1, "succeeded": 1, "failed": 0}


def test_what_the_tasks_of_an_array_took_is_added_up() -> None:
    tasks = [AccountedJob(id=9, task="0", state=JobState.COMPLETED, elapsed=40, cpu=1.0001, memory=5, tres="cpu=1"),
             AccountedJob(id=9, task="1", state=JobState.COMPLETED, elapsed=2, cpu=86401, memory=3072)]  # fmt: skip
    assert usage(tasks) == {"elapsedSeconds": 42, "cpuSeconds": 86402.0, "maxRSSBytes": 3072, "tres": "cpu=1"}


def test_a_job_without_a_reason_shows_none() -> None:
    assert observed([report(JobState.RUNNING, reason="None")])["reason"] is None


def test_only_what_changes_is_written() -> None:
    assert changed({"state": "RUNNING", "nodes": "n1"}, {"state": "RUNNING", "nodes": None, "exit": None}) == {
        "nodes": None
    }


def test_names_of_output_files() -> None:
    def path(pattern: str, *, glob: bool = False) -> str:
        return output_path(pattern, "/there", job=12, name="train", user="alice", glob=glob)

    assert path("slurm-%j.out") == "/there/slurm-12.out"
    assert path("%x-%4j-%u-100%%.log") == "/there/train-0012-alice-100%.log"
    assert path("/logs/%A_%a.out", glob=True) == "/logs/12_*.out"
    assert path("%N.out") == "/there/*.out"
