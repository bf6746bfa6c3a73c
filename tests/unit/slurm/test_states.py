"""The states of jobs."""

from __future__ import annotations

import pytest

from pinnace.slurm.states import JobState, Phase


@pytest.mark.parametrize(
    ("text", "state", "phase"),
    [
        ("PENDING", JobState.PENDING, Phase.WAITING),
        ("CONFIGURING", JobState.CONFIGURING, Phase.WAITING),
        ("RUNNING", JobState.RUNNING, Phase.RUNNING),
        ("CANCELLED by 1000", JobState.CANCELLED, Phase.ENDED),
        ("CANCELLED+", JobState.CANCELLED, Phase.ENDED),
        ("NODE_FAIL", JobState.NODE_FAIL, Phase.ENDED),
        ("COMPLETING", JobState.COMPLETING, Phase.COMPLETING),
    ],
)
def test_every_state_has_a_phase(text: str, state: JobState, phase: Phase) -> None:
    assert JobState.parse(text) is state
    assert state.phase is phase
    assert state.has_ended is (phase is Phase.ENDED)


def test_a_job_that_is_completing_has_not_ended_and_serves_nobody() -> None:
    assert not JobState.COMPLETING.has_ended
    assert not JobState.COMPLETING.is_alive
    assert JobState.PENDING.is_alive
    assert JobState.RUNNING.is_alive
