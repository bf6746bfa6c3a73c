"""Limits how many nodes for single pods start on a host at the same time.

Each start takes a core for more than a second. Slurm may begin thirty such jobs at once on one host, and if all nodes
started together, the first pod would wait for the last node. While a node waits to start, other nodes may have taken
its pod (see ``podjobs.reuse``).

A node that starts, or waits to, has a marker file in its directory on the host's own disk. It starts when fewer than
``places`` markers are older than its own. Markers of dead nodes do not count, and go with their directories.
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

MARKER = "starting"  # the name of the file
POLL_INTERVAL = 0.05  # seconds between looks at the others' markers
WAIT_LIMIT = 60.0  # seconds after which a node starts anyway


@dataclass(frozen=True, kw_only=True)
class StartSlot:
    """The permission to start. Any process of the node may release it; ``waited`` says whether others were before."""

    marker: Path
    waited: bool = False

    def release(self) -> None:
        self.marker.unlink(missing_ok=True)


def max_starting(cpus: int) -> int:
    """How many nodes may start at a time: as many as half of the host's cores; the others have work to do."""
    return max(1, cpus // 2)


def acquire(scratch: Path, uid: int, places: int) -> StartSlot:
    """Wait until the node with this directory may start."""
    marker = scratch / MARKER
    marker.touch()
    os.utime(marker, ns=(time.time_ns(),) * 2)  # the kernel's own stamps are some milliseconds apart
    begin, waited = time.monotonic(), False
    while _ahead(marker, uid) >= places and time.monotonic() < begin + WAIT_LIMIT:
        waited = True
        time.sleep(POLL_INTERVAL)
    return StartSlot(marker=marker, waited=waited)


def _ahead(marker: Path, uid: int) -> int:
    """How many living nodes have an older marker."""
    own, count = _order(marker), 0
    for other in marker.parent.parent.glob(f"{prefix(uid)}*"):
        with contextlib.suppress(OSError):  # it may be going
            count += is_own(other) and _order(other / MARKER) < own and _is_alive(other)
    return count


def _order(marker: Path) -> tuple[int, str]:
    return marker.lstat().st_mtime_ns, marker.parent.name


def _is_alive(directory: Path) -> bool:
    """Whether a node's directory is locked, as it is while the node lives."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
