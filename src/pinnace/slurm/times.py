"""Slurm's ways of writing how long: ``[days-]hours:minutes:seconds`` as squeue prints it, and what sbatch takes."""

from __future__ import annotations

import re

TIME = re.compile(r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+))?(?::(?P<ds>\d+))?)|(?P<rest>\d+(?::\d+){0,2})")


def parse_span(text: str) -> int | None:
    """Seconds; None for what has no end or is not known (``UNLIMITED``, ``NOT_SET``, ``INVALID``)."""
    days, _, clock = text.rpartition("-")
    words = clock.split(":")
    if not all(word.isdigit() for word in words) or not (days or "0").isdigit() or len(words) > 3:
        return None
    hours, minutes, seconds = [0] * (3 - len(words)) + [int(word) for word in words]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def parse_limit(text: str) -> int:
    """Minutes of what sbatch takes for a time limit: m, m:s, h:m:s, d-h, d-h:m, d-h:m:s. Rounded up, as Slurm does."""
    found = TIME.fullmatch(text.strip())
    if not found:
        raise ValueError("not a time")
    if found["rest"] is None:
        days, hours, mins, seconds = (int(found[part] or 0) for part in ("d", "dh", "dm", "ds"))
    else:
        parts = [int(part) for part in found["rest"].split(":")]
        hours, mins, seconds = [0, *parts, 0] if len(parts) == 1 else [0, *parts] if len(parts) == 2 else parts
        days = 0
    return (days * 24 + hours) * 60 + mins + (seconds > 0)
