"""Waiting with a limit, and saying what for."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from testbed.errors import WaitError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["tail", "wait_until"]

LINES = 15
LONGEST_INTERVAL = 1.0  # seconds between two questions, however long an answer takes


def tail(path: Path, lines: int = LINES) -> str:
    try:
        with path.open(errors="replace") as file:
            return "".join(deque(file, lines))
    except OSError:
        return ""


def wait_until(
    what: str, ready: Callable[[], bool], *, limit: float, log: Path | None = None, interval: float = 0.02
) -> None:
    """Return as soon as ``ready()``; after ``limit`` seconds raise an error with the end of the log.

    Who asks by a command that takes long, such as kubectl, asks less often: others need the processors too.
    """
    end = time.monotonic() + limit
    asked = time.monotonic()
    while not ready():
        answered = time.monotonic()
        if answered > end:
            text = tail(log) if log else ""
            raise WaitError(
                f"Waited {limit:.0f} s for {what}, in vain." + (f"\nThe end of {log}:\n{text}" if text else "")
            )
        time.sleep(max(interval, min(2 * (answered - asked), LONGEST_INTERVAL)))
        asked = time.monotonic()
