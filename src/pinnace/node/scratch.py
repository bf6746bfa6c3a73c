"""A node's directory on the host's own disk: for containerd, kubelet and etcd, and gone with the node.

Its files belong to users that exist only inside the node, so only the node's keeper can remove them. A node that was
killed leaves its directory behind; the next one of the same user on that host removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK = ".lock"


def base(environment: Mapping[str, str]) -> Path:
    """Where a host has room for us."""
    return Path(environment.get("PINNACE_SCRATCH") or environment.get("SLURM_TMPDIR") or tempfile.gettempdir())


def make(base: Path, uid: int) -> Path:
    """A fresh directory that no other user can have prepared or can look into. Locked while its node lives."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{prefix(uid)}", dir=base))
    descriptor = os.open(fresh / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # held by the agent and the keeper, until both have ended
    return fresh.rename(base / fresh.name.removeprefix("."))  # only now does ``sweep`` see it


def remove(path: Path) -> None:
    """Remove a node's directory with all that is in it, unless something is mounted below it: that is not ours."""
    if not mounts_below(path, Path("/proc/self/mountinfo").read_text()):
        shutil.rmtree(path, ignore_errors=True)


def mounts_below(path: Path, mountinfo: str) -> list[str]:
    """The mount points at or below a path; see proc(5) for the format and its escapes."""
    points = (line.split()[4].encode().decode("unicode_escape") for line in mountinfo.splitlines())
    return [point for point in points if Path(point).is_relative_to(path)]


def prefix(uid: int) -> str:
    return f"pinnace-{uid}-"


def sweep(base: Path, uid: int) -> None:
    """Remove what dead nodes of ours have left. ``uid`` is the user's outside; whoever calls owns the files here."""
    for path in base.glob(f"{prefix(uid)}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # a removal may have begun with the lock
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
            finally:
                os.close(descriptor)
