"""Nodes that are for single pods start on a host a few at a time.

Each takes a core for more than a second. Slurm may begin thirty such jobs at once on one host, and if all started
together, the first pod would have to wait for the last node. While a job waits for its turn, others may have taken
its pod (see ``node.succession``).

Turns are locks on files in a directory of the user's on the host's own disk; they end with whoever holds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PAUSE = 0.05  # seconds
LIMIT = 60.0  # seconds after which a node starts anyway


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Held until it is handed on, by us or by a process that we forked; or until all of these are gone."""

    lock: int | None = None
    waited: bool = False

    def hand_on(self) -> None:
        if self.lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self.lock, fcntl.LOCK_UN)


def at_a_time(cpus: int) -> int:
    """How many may start together: half of the host's cores, for the other half has work to do."""
    return max(1, cpus // 2)


def take(base: Path, uid: int, places: int) -> Turn:
    """Wait for a turn. Where the directory cannot be ours, nobody waits."""
    directory = base / f"pinnace-turns-{uid}"
    if not _is_ours(directory, uid):
        return Turn()
    begin = time.monotonic()
    waited = False
    while time.monotonic() < begin + LIMIT:
        for number in range(places):
            if (lock := _lock(directory / str(number))) is not None:
                return Turn(lock=lock, waited=waited)
        waited = True
        time.sleep(PAUSE)
    return Turn(waited=waited)


def _is_ours(directory: Path, uid: int) -> bool:
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        about = directory.lstat()
        return stat.S_ISDIR(about.st_mode) and about.st_uid == uid and not about.st_mode & 0o077
    return False


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
