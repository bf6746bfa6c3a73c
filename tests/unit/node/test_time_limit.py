from __future__ import annotations

import pytest

from pinnace.node.time_limit import grace, until_end
from pinnace.slurm.jobs import QueuedJob
from pinnace.slurm.states import JobState


def job(left: str, limit: str) -> QueuedJob:
    return QueuedJob(id=12, state=JobState.RUNNING, time_left=left, time_limit=limit)


@pytest.mark.parametrize(("limit", "seconds"), [(60, 15), (120, 30), (240, 60), (86400, 60)])
def test_a_short_job_gives_less_of_its_time(limit: int, seconds: int) -> None:
    assert grace(limit) == seconds


def test_the_end_begins_before_the_limit() -> None:
    assert until_end(job("1:00", "1:00")) == 45
    assert until_end(job("0:10", "1:00")) == -5
    assert until_end(job("1-00:00:00", "1-00:00:00")) == 86340


@pytest.mark.parametrize(("left", "limit"), [("UNLIMITED", "UNLIMITED"), ("INVALID", "1:00")])
def test_a_job_without_a_limit_has_no_end(left: str, limit: str) -> None:
    assert until_end(job(left, limit)) is None
