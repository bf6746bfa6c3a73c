"""Unpacked images that outlive their cluster: a pool of containerd's directories on a host's own disk.

    <scratch>/pinnace-cache-<uid>/<random>/.lock         held while a node uses it
                                          /closed.json   only while none does: how the last one left it
                                          /containerd/   content and snapshots, with containerd's databases

The databases belong to one process, so nodes that run on a host at once have a directory each. A node takes one that is
free, or makes one. What says that it is whole goes when it is taken, and is written again when every process of the
node has ended in order (see ``images.cache_closing``). So a node that is killed, at any moment, leaves a directory that
nobody takes; its monitor removes it, or the next node of the same user on that host.

Nothing of it decides what a name means: names of images are forgotten at the end of each cluster, and what is kept is
content under its digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import struct
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace import ownership
from pinnace.errors import UsageError
from pinnace.images import boltdb
from pinnace.sandbox import scratch
from pinnace.sandbox.mountinfo import filesystem_of_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT = 1
CLOSED = "closed.json"
AGE = 7 * 24 * 3600.0  # seconds for which an image is kept that nobody uses
SHARE = 0.1  # of the file system, for all of a user's directories on it
FREE = 10 << 30  # bytes that others must find
VARIABLE = "PINNACE_IMAGE_CACHE"
OFF = {"0", "off", "no"}
IN_MEMORY = {"tmpfs", "ramfs"}
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
DATABASE = "io.containerd.metadata.v1.bolt/meta.db"
KEPT = ("io.containerd.content.v1.content", "io.containerd.metadata.v1.bolt", "io.containerd.snapshotter.v1.overlayfs")


@dataclass(frozen=True, kw_only=True)
class Closed:
    """``closed.json``. ``fits`` is for whom (see ``fitting``), ``parts`` what it looked like (see ``look``)."""

    fits: list[str]
    time: float
    size: int
    parts: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A directory of the pool that is ours while we live. ``parts`` is empty if it is new."""

    path: Path
    fits: list[str]
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def containerd(self) -> Path:
        return self.path / "containerd"


def place(environment: Mapping[str, str], uid: int) -> Path | None:
    """Where a user's pool is on this host; None if there is to be none."""
    asked = environment.get(VARIABLE, "")
    if asked in OFF:
        return None
    if asked and not Path(asked).is_absolute():
        raise UsageError(
            f"{VARIABLE} is {asked!r}",
            hint="It must be 0, or the absolute path of a directory on the hosts' own disks.",
        )
    if not asked and not environment.get("PINNACE_SCRATCH") and environment.get("SLURM_TMPDIR"):
        return None  # it goes with the job
    return (Path(asked) if asked else scratch.base(environment)) / f"pinnace-cache-{uid}"


def fitting(containerd: str, ids: str) -> list[str]:
    """Who can use a directory: this version of containerd, under these identities, until the host starts again.

    What was unpacked is not forced to the disk, so after a power failure files may be empty.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [str(FORMAT), boot, containerd, ids]


def prepare(pool: Path, mountinfo: str) -> bool:
    """Make the pool. Whether it can be used: it is ours alone, nobody can exchange it, and it is on a disk."""
    try:
        pool.mkdir(mode=0o700, exist_ok=True)
        return is_ours(pool) and filesystem_of_device(pool.stat().st_dev, mountinfo) not in IN_MEMORY
    except OSError:
        return False


def is_ours(pool: Path) -> bool:
    about = pool.lstat()
    alone = about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return stat.S_ISDIR(about.st_mode) and alone and not ownership.problem(pool)


def take(pool: Path, fits: list[str]) -> Lease:
    """The directory that was used last of those that are free and fit, or a new one. Locked until we have ended."""
    for path in sorted(_all(pool), key=_closed_at, reverse=True):
        with contextlib.suppress(OSError):
            descriptor = _lock(path)
            if descriptor is None:
                continue
            closed = read(path)
            if closed and closed.fits == fits:
                (path / CLOSED).unlink()
                return Lease(path=path, fits=fits, parts=closed.parts)
            os.close(descriptor)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=pool))
    _lock(fresh)
    path = fresh.rename(pool / fresh.name.removeprefix(".new-"))  # only now does ``sweep`` see it
    (path / "containerd").mkdir()
    return Lease(path=path, fits=fits)


def close(lease: Lease) -> None:
    """Give a directory back that was left in order; all processes that used it have ended."""
    for path in lease.containerd.iterdir():
        if path.name not in KEPT:
            scratch.remove(path)
    if not _erased(lease.containerd / DATABASE):
        return drop(lease.path)
    try:
        parts = look(lease.containerd)
    except OSError:  # of an image with paths that are longer than the kernel takes
        return drop(lease.path)
    if any(parts.get(name, seen) != seen for name, seen in lease.parts.items() if name.startswith(SNAPSHOTS)):
        return drop(lease.path)  # somebody cleaned up in it meanwhile
    closed = Closed(fits=lease.fits, time=time.time(), size=size_of(lease.containerd), parts=parts)
    unfinished = lease.path / f".{CLOSED}"
    unfinished.write_text(json.dumps(asdict(closed)))
    unfinished.rename(lease.path / CLOSED)
    return trim(lease.path.parent, own=lease.path)


def _erased(database: Path) -> bool:
    """Erase what pods have left in containerd's database. Whether it could be done."""
    try:
        boltdb.erase_free_pages(database)
    except (OSError, ValueError, struct.error):
        return False
    return True


def drop(path: Path) -> None:
    """Remove a directory of the pool. What says that it is whole goes first."""
    (path / CLOSED).unlink(missing_ok=True)
    scratch.remove(path)


def drop_unless_closed(lease: Lease) -> None:
    if not (lease.path / CLOSED).exists():
        drop(lease.path)


def sweep(pool: Path, fits: list[str]) -> None:
    """Remove what nobody will take: what dead nodes left, what is too old, what does not fit."""
    for path in _all(pool):
        closed = read(path)
        if not closed or closed.fits != fits or closed.time < time.time() - AGE:
            _drop_if_free(path, fits)
    trim(pool)


def trim(pool: Path, own: Path | None = None) -> None:
    """Remove what was not used for longest, until the rest is small enough. We hold the lock of ``own``."""
    for path in sorted(_all(pool), key=_closed_at):
        system = os.statvfs(pool)
        if size(pool) <= SHARE * system.f_blocks * system.f_frsize and system.f_bavail * system.f_frsize >= FREE:
            return
        if path == own:
            drop(path)
        elif read(path):
            _drop_if_free(path)


def prune(pool: Path) -> bool:
    """Remove all that is free. Whether nothing is left."""
    for path in _all(pool):
        _drop_if_free(path)
    with contextlib.suppress(OSError):
        pool.rmdir()
    return not _all(pool)


def size(pool: Path) -> int:
    """The bytes of what is free."""
    return sum(closed.size for closed in map(read, _all(pool)) if closed)


def _drop_if_free(path: Path, fits: list[str] | None = None) -> None:
    with contextlib.suppress(OSError):
        descriptor = _lock(path)
        if descriptor is None:
            return
        try:
            closed = read(path)  # it may have been closed since the caller looked
            if not (fits and closed and closed.fits == fits and closed.time >= time.time() - AGE):
                drop(path)
        finally:
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Take a directory's lock; None if somebody holds it, or has just removed the directory."""
    descriptor = os.open(path / scratch.LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    os.close(descriptor)
    return None


def read(path: Path) -> Closed | None:
    """What the last node said about a directory, if it left it in order."""
    try:
        return Closed(**json.loads((path / CLOSED).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _closed_at(path: Path) -> float:
    closed = read(path)
    return closed.time if closed else 0.0


def _all(pool: Path) -> list[Path]:
    return [path for path in pool.glob("[!.]*") if path.is_dir() and not path.is_symlink()]


def look(containerd: Path) -> dict[str, str]:
    """What a directory looks like: a digest for each snapshot, and one for the rest.

    Of each directory the names in it and when they last changed. That shows every file that a site's cleaning of /tmp
    has taken, without looking at the files themselves.
    """
    snapshots = containerd / SNAPSHOTS
    parts = {f"{SNAPSHOTS}/{path.name}": _digest(path) for path in snapshots.iterdir()} if snapshots.is_dir() else {}
    return parts | {"rest": _digest(containerd, but=snapshots)}


def verify(containerd: Path, parts: dict[str, str]) -> None:
    """Before containerd starts: what does not look as it was left is emptied."""
    if look(containerd) != parts:
        for path in containerd.iterdir():
            scratch.remove(path)


def _digest(top: Path, but: Path | None = None) -> str:
    state = hashlib.sha256()
    for path, entries in _walk(top, str(but)):
        names = [entry.name for entry in entries]
        state.update(repr((path.removeprefix(str(top)), Path(path).stat().st_mtime_ns, names)).encode())
    return state.hexdigest()


def size_of(top: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for _, entries in _walk(top) for entry in entries)


def _walk(top: Path, but: str = "") -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Every directory with its entries, sorted; not what is below ``but``."""
    left = [str(top)]
    while left:
        path = left.pop()
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        yield path, entries
        if path != but:
            left += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
