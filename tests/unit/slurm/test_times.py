from __future__ import annotations

import pytest

from pinnace.slurm.times import format_utc, parse_duration, parse_limit, parse_timestamp


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:59", 59),
        ("1:00", 60),
        ("59:30", 3570),
        ("2:00:01", 7201),
        ("1-00:00:00", 86400),
        ("10-01:00:00", 867600),
        ("03:04.567", 184.567),
        ("1-00:00:01", 86401),
        ("00:00:00", 0),
    ],
)
def test_what_squeue_prints_becomes_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["UNLIMITED", "NOT_SET", "INVALID", "", "Partition_Limit"])
def test_what_has_no_end_is_none(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("10", 10), ("1:30", 2), ("1:00", 1), ("1:30:00", 90), ("1:30:01", 91), ("2-3", 3060), ("2-3:4", 3064),
     ("0:90", 1)],
)  # fmt: skip
def test_what_sbatch_takes_becomes_minutes(text: str, minutes: int) -> None:
    assert parse_limit(text) == minutes


@pytest.mark.parametrize("text", ["N/A", "Unknown", "", "None"])
def test_points_in_time(text: str) -> None:
    assert parse_timestamp("1970-01-01T00:01:40") == 100
    assert format_utc(100) == "1970-01-01T00:01:40"
    assert parse_timestamp(text) == 0
