"""The cache of unpacked images, which outlives clusters: a pool of containerd root directories on a host's disk.

    <scratch>/pinnace-cache-<uid>/<random>/.lock         held while a node uses it
                                          /closed.json   present while no node uses it: the state that the last one left
                                          /origin/       while a node uses it: what others may copy
                                          /containerd/   content and snapshots, with containerd's databases

The databases belong to one process, so nodes that run on a host at the same time have a directory each. A node takes a
free directory, or makes one, perhaps as a copy of another (see ``images.cache_copying``). It removes closed.json when
it takes the directory; the file is written again when every process of the node has ended in order (see
``images.cache_closing``). So a node that is killed, at any moment, leaves a directory that no node takes; its monitor
removes it, or the user's next node on that host.

The cache does not resolve names: names of images are deleted at the end of each cluster, and content is kept by digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
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
from pinnace.removal import remove_tree
from pinnace.sandbox import scratch
from pinnace.sandbox.mountinfo import filesystem_of_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FORMAT_VERSION = 2
CLOSED_FILE = "closed.json"
CONTAINERD = "containerd"  # containerd's root directory, in a directory of the pool
ORIGIN = "origin"  # how a directory was when it was taken: closed.json, with the names of its content, and databases
MAX_AGE = 7 * 24 * 3600.0  # seconds that an unused image is kept
MAX_SHARE = 0.1  # fraction of the file system for all of a user's directories on it
MIN_FREE = 10 << 30  # bytes of the file system that are left for others
VARIABLE = "PINNACE_IMAGE_CACHE"
OFF = {"0", "off", "no"}
IN_MEMORY = {"tmpfs", "ramfs"}
BLOBS = "io.containerd.content.v1.content/blobs/sha256"
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
DATABASE = "io.containerd.metadata.v1.bolt/meta.db"
DATABASES = (DATABASE, "io.containerd.snapshotter.v1.overlayfs/metadata.db")
KEPT_DIRECTORIES = (
    "io.containerd.content.v1.content",
    "io.containerd.metadata.v1.bolt",
    "io.containerd.snapshotter.v1.overlayfs",
)


@dataclass(frozen=True, kw_only=True)
class Closed:
    """``closed.json``. ``fits`` is the compatibility key (see ``fitting``), ``parts`` come from ``fingerprint``."""

    fits: list[str]
    time: float
    size: int
    parts: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class CacheOrigin:
    """What a directory was when the node that uses it has taken it. ``blobs`` are the names of its content.

    ``token`` is random: no other node that takes the directory has the same.
    """

    closed: Closed
    blobs: list[str]
    token: str


@dataclass(frozen=True, kw_only=True)
class CacheLease:
    """A directory of the pool that this process has locked. ``parts`` is empty if it is new.

    ``source`` is another directory, of which a new one should become a copy.
    """

    path: Path
    fits: list[str]
    parts: dict[str, str] = field(default_factory=dict)
    source: Path | None = None

    @property
    def containerd(self) -> Path:
        return self.path / CONTAINERD


def place(environment: Mapping[str, str], uid: int) -> Path | None:
    """The path of the user's pool on this host; None if caching is off."""
    asked = environment.get(VARIABLE, "")
    if asked in OFF:
        return None
    if asked and not Path(asked).is_absolute():
        raise UsageError(
            f"{VARIABLE} is {asked!r}",
            hint="It must be 0, or the absolute path of a directory on the hosts' own disks.",
        )
    if not asked and not environment.get("PINNACE_SCRATCH") and environment.get("SLURM_TMPDIR"):
        return None  # it is removed with the job
    return (Path(asked) if asked else scratch.base(environment)) / f"pinnace-cache-{uid}"


def fitting(containerd: str, ids: str) -> list[str]:
    """The compatibility key of a directory: format, boot of the host, containerd's version, and mapped IDs.

    The boot is part of it because unpacked files are not synced: after a power failure they may be empty.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [str(FORMAT_VERSION), boot, containerd, ids]


def prepare(pool: Path, mountinfo: str) -> bool:
    """Make the pool. Whether it can be used: only we can access it, nobody can replace it, and it is on a disk."""
    try:
        pool.mkdir(mode=0o700, exist_ok=True)
        return is_ours(pool) and filesystem_of_device(pool.stat().st_dev, mountinfo) not in IN_MEMORY
    except OSError:
        return False


def is_ours(pool: Path) -> bool:
    about = pool.lstat()
    alone = about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return stat.S_ISDIR(about.st_mode) and alone and not ownership.problem(pool)


def take(pool: Path, fits: list[str], wanted: Iterable[str] = ()) -> CacheLease:
    """Lock a directory that is free and compatible, or a new one, until this process ends.

    ``wanted`` are the digests of images that will be wanted: the directory that has most of them is taken, and of equal
    ones that which was used last. If one that is in use has more, a new one should become a copy of it.
    """
    digests, directories = set(wanted), _all(pool)

    def count(path: Path) -> int:
        return sum(has_content(path / CONTAINERD, digest) for digest in digests)

    source = _source(directories, fits, digests)
    most = count(source) if source else 0
    for path in sorted(directories, key=lambda path: (count(path), _closed_at(path)), reverse=True):
        with contextlib.suppress(OSError):
            descriptor = _lock(path)
            if descriptor is None:
                continue
            closed = read(path)
            if closed and closed.fits == fits and count(path) >= most:
                _keep_origin(path, closed)
                (path / CLOSED_FILE).unlink()
                return CacheLease(path=path, fits=fits, parts=closed.parts)
            os.close(descriptor)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=pool))
    _lock(fresh)
    path = fresh.rename(pool / fresh.name.removeprefix(".new-"))  # ``sweep`` matches only the final name
    (path / CONTAINERD).mkdir()
    return CacheLease(path=path, fits=fits, source=source)


def _source(directories: list[Path], fits: list[str], digests: set[str]) -> Path | None:
    """The directory in use that had most of these images when it was taken; None if none had any."""
    counts: dict[Path, int] = {}
    for path in directories:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            origin = read_origin(path)
            if origin.closed.fits == fits:
                counts[path] = len(digests & {f"sha256:{name}" for name in origin.blobs})
    best = max(counts, key=lambda path: counts[path], default=None)
    return best if best and counts[best] else None


def _keep_origin(path: Path, closed: Closed) -> None:
    """Keep what others may copy, before containerd changes its databases. Without it, nobody copies this one."""
    unfinished = path / f".{ORIGIN}"
    with contextlib.suppress(OSError):
        remove_tree(unfinished)
        unfinished.mkdir()
        for name in DATABASES:
            shutil.copyfile(path / CONTAINERD / name, unfinished / Path(name).parent.name)
        origin = {
            "closed": asdict(closed),
            "blobs": sorted(blob.name for blob in (path / CONTAINERD / BLOBS).iterdir()),
            "token": secrets.token_hex(),
        }
        (unfinished / CLOSED_FILE).write_text(json.dumps(origin))
        unfinished.rename(path / ORIGIN)


def read_origin(path: Path) -> CacheOrigin:
    """Of a directory that a node has taken. Raises if it has none."""
    about = json.loads((path / ORIGIN / CLOSED_FILE).read_text())
    return CacheOrigin(closed=Closed(**about["closed"]), blobs=about["blobs"], token=about["token"])


def has_content(containerd: Path, digest: str) -> bool:
    """Whether containerd's directory has a manifest, or other content. The parts of an image are kept with it."""
    return (containerd / BLOBS / digest.removeprefix("sha256:")).is_file()


def close(lease: CacheLease) -> None:
    """Return a directory to the pool. All processes that used it have ended in order."""
    remove_tree(lease.path / ORIGIN)
    for path in lease.containerd.iterdir():
        if path.name not in KEPT_DIRECTORIES:
            scratch.remove(path)
    if not _erase_deleted(lease.containerd / DATABASE):
        return drop(lease.path)
    try:
        parts = fingerprint(lease.containerd)
    except OSError:  # an image has paths that are longer than PATH_MAX
        return drop(lease.path)
    if any(parts.get(name, seen) != seen for name, seen in lease.parts.items() if name.startswith(SNAPSHOTS)):
        return drop(lease.path)  # the site's cleaning of /tmp has removed files in the meantime
    closed = Closed(fits=lease.fits, time=time.time(), size=size_of(lease.containerd), parts=parts)
    unfinished = lease.path / f".{CLOSED_FILE}"
    unfinished.write_text(json.dumps(asdict(closed)))
    unfinished.rename(lease.path / CLOSED_FILE)
    return trim(lease.path.parent, own=lease.path)


def _erase_deleted(database: Path) -> bool:
    """Erase deleted entries of pods from containerd's database. Whether that succeeded."""
    try:
        boltdb.erase_free_pages(database)
    except (OSError, ValueError, struct.error):
        return False
    return True


def drop(path: Path) -> None:
    """Remove a directory of the pool. closed.json goes first, so that no node takes what is left."""
    (path / CLOSED_FILE).unlink(missing_ok=True)
    scratch.remove(path)


def drop_unless_closed(lease: CacheLease) -> None:
    if not (lease.path / CLOSED_FILE).exists():
        drop(lease.path)


def sweep(pool: Path, fits: list[str]) -> None:
    """Remove directories that no node will take: of dead nodes, too old, or incompatible."""
    for path in _all(pool):
        closed = read(path)
        if not closed or closed.fits != fits or closed.time < time.time() - MAX_AGE:
            _drop_if_free(path, fits)
    trim(pool)


def trim(pool: Path, own: Path | None = None) -> None:
    """Remove the least recently used directories until the pool is small enough. We hold the lock of ``own``."""
    for path in sorted(_all(pool), key=_closed_at):
        system = os.statvfs(pool)
        if (
            size(pool) <= MAX_SHARE * system.f_blocks * system.f_frsize
            and system.f_bavail * system.f_frsize >= MIN_FREE
        ):
            return
        if path == own:
            drop(path)
        elif read(path):
            _drop_if_free(path)


def prune(pool: Path) -> bool:
    """Remove all free directories. Whether none is left."""
    for path in _all(pool):
        _drop_if_free(path)
    with contextlib.suppress(OSError):
        pool.rmdir()
    return not _all(pool)


def size(pool: Path) -> int:
    """The total size of the free directories, in bytes."""
    return sum(closed.size for closed in map(read, _all(pool)) if closed)


def _drop_if_free(path: Path, fits: list[str] | None = None) -> None:
    with contextlib.suppress(OSError):
        descriptor = _lock(path)
        if descriptor is None:
            return
        try:
            closed = read(path)  # it may have been closed since the caller read it
            if not (fits and closed and closed.fits == fits and closed.time >= time.time() - MAX_AGE):
                drop(path)
        finally:
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Take a directory's lock; None if another process holds it, or has just removed the directory."""
    descriptor = os.open(path / scratch.LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    os.close(descriptor)
    return None


def read(path: Path) -> Closed | None:
    """Read closed.json; None if the last node has not left the directory in order."""
    try:
        return Closed(**json.loads((path / CLOSED_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _closed_at(path: Path) -> float:
    closed = read(path)
    return closed.time if closed else 0.0


def _all(pool: Path) -> list[Path]:
    return [path for path in pool.glob("[!.]*") if path.is_dir() and not path.is_symlink()]


def fingerprint(containerd: Path) -> dict[str, str]:
    """Digests of what is kept in a directory: one for each snapshot, and of the rest one for each part.

    They cover the names in each directory and its modification time. That shows every file that a site's cleaning of
    /tmp has removed, without reading the files themselves.
    """
    snapshots = containerd / SNAPSHOTS
    parts = {f"{SNAPSHOTS}/{path.name}": _digest(path) for path in snapshots.iterdir()} if snapshots.is_dir() else {}
    kept = (name for name in KEPT_DIRECTORIES if (containerd / name).is_dir())
    return parts | {name: _digest(containerd / name, but=snapshots) for name in kept}


def verify(containerd: Path, parts: dict[str, str]) -> None:
    """Empty a directory that has changed since it was closed. Called before containerd opens what is kept there."""
    if fingerprint(containerd) != parts:
        empty(containerd)


def empty(containerd: Path) -> None:
    """Remove what is kept. containerd may have made other files already."""
    for name in KEPT_DIRECTORIES:
        scratch.remove(containerd / name)


def fingerprint_of(snapshot: Path) -> str:
    """The part of a fingerprint that is for one snapshot."""
    return _digest(snapshot)


def _digest(top: Path, but: Path | None = None) -> str:
    state = hashlib.sha256()
    for path, entries in _walk(top, str(but)):
        names = [entry.name for entry in entries]
        state.update(repr((path.removeprefix(str(top)), Path(path).stat().st_mtime_ns, names)).encode())
    return state.hexdigest()


def size_of(top: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for _, entries in _walk(top) for entry in entries)


def _walk(top: Path, but: str = "") -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Every directory with its entries, sorted; without the directories below ``but``."""
    left = [str(top)]
    while left:
        path = left.pop()
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        yield path, entries
        if path != but:
            left += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
