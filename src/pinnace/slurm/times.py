"""Slurm's ways of writing times: durations that it prints, time limits that sbatch takes, and points in time."""

from __future__ import annotations

import datetime as dt
import re

DURATION = re.compile(r"(?:(?P<d>[0-9]+)-)?(?P<clock>[0-9]+(?::[0-9]+){0,2}(?:\.[0-9]+)?)")
LIMIT = re.compile(r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+))?(?::(?P<ds>\d+))?)|(?P<rest>\d+(?::\d+){0,2})")


def parse_duration(text: str) -> float | None:
    """Seconds of ``[days-][[hours:]minutes:]seconds[.fraction]``, as squeue and sacct print it.

    None for what has no end or is not known (``UNLIMITED``, ``NOT_SET``, ``INVALID``).
    """
    found = DURATION.fullmatch(text.strip())
    if not found:
        return None
    seconds = 0.0
    for part in found["clock"].split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + 86400 * int(found["d"] or 0)


def parse_limit(text: str) -> int:
    """Minutes of what sbatch takes for a time limit: m, m:s, h:m:s, d-h, d-h:m, d-h:m:s. Rounded up, as Slurm does."""
    found = LIMIT.fullmatch(text.strip())
    if not found:
        raise ValueError("not a time")
    if found["rest"] is None:
        days, hours, mins, seconds = (int(found[part] or 0) for part in ("d", "dh", "dm", "ds"))
    else:
        parts = [int(part) for part in found["rest"].split(":")]
        hours, mins, seconds = [0, *parts, 0] if len(parts) == 1 else [0, *parts] if len(parts) == 2 else parts
        days = 0
    return (days * 24 + hours) * 60 + mins + (seconds > 0)


def parse_timestamp(text: str) -> int:
    """Seconds since 1970 of a time as Slurm prints it in UTC; 0 for none (``N/A``, ``Unknown``)."""
    try:
        return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp())
    except ValueError:
        return 0


def format_utc(seconds: int) -> str:
    """A point in time, in UTC, as Slurm's commands take it and print it."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def format_local(seconds: int) -> str:
    """A point in time as Slurm's commands show it to a user here."""
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
