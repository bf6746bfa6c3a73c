"""How often Slurm is asked."""

from __future__ import annotations

import pytest

from pinnace.slurm.pacing import squeue_interval


@pytest.mark.parametrize(("quiet", "interval"), [(0, 1), (9, 1), (60, 6), (150, 15), (86400, 15)])
def test_slurm_is_asked_ever_more_rarely_while_nothing_changes(quiet: float, interval: float) -> None:
    assert squeue_interval(quiet) == pytest.approx(interval)


def test_a_day_in_the_queue_takes_few_questions() -> None:
    now, calls = 0.0, 0
    while now < 86400:
        now, calls = now + squeue_interval(now), calls + 1
    assert calls < 6000  # a call a second would be 86,400
