"""Nodes that are for single pods start on a host a few at a time.

Each takes a core for more than a second. Slurm may begin thirty such jobs at once on one host, and if all started
together, the first pod would have to wait for the last node. While a job waits for its turn, others may have taken
its pod (see ``podjobs.reuse``).

A node that starts has a mark in its directory on the host's own disk. Whoever has fewer older marks before him than
there are places, has his turn. Marks of the dead do not count, and go with their directories.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.sandbox.scratch import LOCK, is_own, prefix

if TYPE_CHECKING:
    from pathlib import Path

MARK = "starting"
PAUSE = 0.05  # seconds
LIMIT = 60.0  # seconds after which a node starts anyway


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Held until it is handed on, by whichever process of the node."""

    mark: Path
    waited: bool = False

    def hand_on(self) -> None:
        self.mark.unlink(missing_ok=True)


def at_a_time(cpus: int) -> int:
    """How many may start together: half of the host's cores, for the other half has work to do."""
    return max(1, cpus // 2)


def take(scratch: Path, uid: int, places: int) -> Turn:
    """Wait for the turn of the node with this directory."""
    mark = scratch / MARK
    mark.touch()
    os.utime(mark, ns=(time.time_ns(),) * 2)  # the kernel's own stamps are some milliseconds apart
    begin, waited = time.monotonic(), False
    while _ahead(mark, uid) >= places and time.monotonic() < begin + LIMIT:
        waited = True
        time.sleep(PAUSE)
    return Turn(mark=mark, waited=waited)


def _ahead(mark: Path, uid: int) -> int:
    """How many nodes are starting that came before."""
    own, count = _order(mark), 0
    for other in mark.parent.parent.glob(f"{prefix(uid)}*"):
        with contextlib.suppress(OSError):  # it may be going
            count += is_own(other) and _order(other / MARK) < own and _lives(other)
    return count


def _order(mark: Path) -> tuple[int, str]:
    return mark.lstat().st_mtime_ns, mark.parent.name


def _lives(directory: Path) -> bool:
    """Whether a node's directory is locked, as it is while the node lives."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
