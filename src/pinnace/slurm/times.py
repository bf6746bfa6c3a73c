"""Slurm's way of writing how long: ``[days-]hours:minutes:seconds``, as squeue prints it."""

from __future__ import annotations


def parse_span(text: str) -> int | None:
    """Seconds; None for what has no end or is not known (``UNLIMITED``, ``NOT_SET``, ``INVALID``)."""
    days, _, clock = text.rpartition("-")
    words = clock.split(":")
    if not all(word.isdigit() for word in words) or not (days or "0").isdigit() or len(words) > 3:
        return None
    hours, minutes, seconds = [0] * (3 - len(words)) + [int(word) for word in words]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
