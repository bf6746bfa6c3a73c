"""A node's directory on the host's own disk: for containerd, kubelet and etcd, and gone with the node.

Its files belong to users that exist only inside the node, so only the node's keeper can remove them. A node that was
killed leaves its directory behind; the next one of the same user on that host removes it.
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
from pinnace.sandbox.mountinfo import mount_points, mount_table

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK = ".lock"
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def base(environment: Mapping[str, str]) -> Path:
    """Where a host has room for us."""
    return Path(environment.get("PINNACE_SCRATCH") or environment.get("SLURM_TMPDIR") or tempfile.gettempdir())


def make(base: Path, uid: int) -> Path:
    """A fresh directory that no other user can have prepared, exchange, or look into. Locked while its node lives."""
    ownership.require(base, "the scratch directory of this host", "set PINNACE_SCRATCH to another directory")
    fresh = Path(tempfile.mkdtemp(prefix=f".{prefix(uid)}", dir=base))
    descriptor = os.open(fresh / LOCK, FLAGS, 0o600)
    os.set_inheritable(descriptor, True)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # held by the agent and the keeper, until both have ended
    # Only under its last name does ``sweep`` see it. Nobody can guess that name and take it first.
    return fresh.rename(base / f"{prefix(uid)}{secrets.token_hex(8)}")


def is_own(path: Path) -> bool:
    """Whether a directory is one that ``make`` has made for us. Others can make one with such a name, or a link."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def remove(path: Path) -> None:
    """Remove a node's directory with all that is in it, unless something is mounted below it: that is not ours."""
    if not mounts_below(path, mount_table()):
        remove_tree(path)


def mounts_below(path: Path, table: str) -> list[str]:
    """The mount points at or below a path."""
    return [point.target for point in mount_points(table) if Path(point.target).is_relative_to(path)]


def prefix(uid: int) -> str:
    return f"pinnace-{uid}-"


def sweep(base: Path, uid: int) -> None:
    """Remove what dead nodes of ours have left. ``uid`` is the user's outside; whoever calls owns the files here."""
    for path in base.glob(f"{prefix(uid)}*"):
        with contextlib.suppress(OSError):
            if not is_own(path):
                continue
            descriptor = os.open(path / LOCK, FLAGS, 0o600)  # a removal may have begun with the lock
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
            finally:
                os.close(descriptor)
