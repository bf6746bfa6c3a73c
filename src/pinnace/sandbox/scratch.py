"""A node's directory on the host's own disk, for containerd, kubelet and etcd. It is removed with the node.

Its files belong to users that exist only inside the node, so only the node's monitor can remove them (see
``namespaces``). A node that was killed leaves its directory behind; the user's next node on that host removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace import ownership
from pinnace.removal import remove_tree
from pinnace.sandbox import cgroups
from pinnace.sandbox.mountinfo import mount_points, mount_table

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK = ".lock"
SECOND_TMP = "/var/tmp"  # noqa: S108 - where /tmp is mounted noexec
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def base(environment: Mapping[str, str]) -> Path:
    """The directory of a host in which nodes make theirs: the user's choice, or the first in which programs can run."""
    if chosen := environment.get("PINNACE_SCRATCH"):
        return Path(chosen)
    usual = [Path(place) for place in (environment.get("SLURM_TMPDIR"), tempfile.gettempdir(), SECOND_TMP) if place]
    return next((place for place in usual if is_writable(place) and not is_noexec(place)), usual[0])


def is_writable(place: Path) -> bool:
    return os.access(place, os.W_OK | os.X_OK)


def is_noexec(place: Path) -> bool:
    """Whether no file below it can be executed; of a directory that is not there that is not known."""
    try:
        return bool(os.statvfs(place).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def make(base: Path, uid: int) -> Path:
    """Make a directory that no other user can have prepared, replace, or read. It is locked while its node lives."""
    ownership.require(base, "the scratch directory of this host", "set PINNACE_SCRATCH to another directory")
    fresh = Path(tempfile.mkdtemp(prefix=f".{prefix(uid)}", dir=base))
    descriptor = os.open(fresh / LOCK, LOCK_FLAGS, 0o600)
    os.set_inheritable(descriptor, True)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # held by the agent and the monitor, until both have ended
    # ``sweep`` matches only the final name. It is random, so that no other user can take it first.
    return fresh.rename(base / f"{prefix(uid)}{secrets.token_hex(8)}")


def is_own(path: Path) -> bool:
    """Whether ``make`` has made a directory for us. Other users can make one with such a name, or a link."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def remove(path: Path) -> None:
    """Remove a node's cgroups, and its directory unless something is mounted below it, which would be removed too."""
    cgroups.remove(path)
    if not mounts_below(path, mount_table()):
        remove_tree(path)


def mounts_below(path: Path, table: str) -> list[str]:
    """The mount points at or below a path."""
    return [point.target for point in mount_points(table) if Path(point.target).is_relative_to(path)]


def prefix(uid: int) -> str:
    return f"pinnace-{uid}-"


def sweep(base: Path, uid: int) -> None:
    """Remove the directories of our dead nodes. ``uid`` is the user's on the host; the caller owns the files."""
    for path in base.glob(f"{prefix(uid)}*"):
        with contextlib.suppress(OSError):
            if not is_own(path):
                continue
            descriptor = os.open(
                path / LOCK, LOCK_FLAGS, 0o600
            )  # O_CREAT: an earlier removal may have removed the lock file
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
            finally:
                os.close(descriptor)
