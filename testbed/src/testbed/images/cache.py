"""Where finished images lie.

    <name>-<contents>.tar   an image, named after everything that went into it
    <name>-<recipe>.json    what the recipe last resolved to: that file, its digest, the versions of its packages
    debs/, apt/             the packages, and apt's index of the lists
    work-*/                 a build under way, or what a killed one left behind

One build runs at a time and holds the lock. A file gets its name only when it is complete, so reading needs no lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from testbed.errors import BedError
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Built", "Cache", "copy_to", "disk_errors"]

WAIT_SECONDS = 1800  # all images from nothing take two minutes on two cores
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Built:
    """A finished image. ``inputs`` are the packages in it, and the compiler's, as ``name=version``."""

    path: Path
    digest: str
    size: int
    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A directory of images, and one of packages, which several caches may share."""

    root: Path
    debs: Path

    @classmethod
    def default(cls) -> Cache:
        """Return the cache of this machine, or the one below ``TESTBED_CACHE``."""
        root = Path(os.environ.get("TESTBED_CACHE") or "/var/cache/testbed") / "images"
        return cls(root=root, debs=root / "debs")

    @property
    def apt(self) -> Path:
        return self.root / "apt"

    def lookup(self, name: str, recipe_key: str) -> Built | None:
        """Return what a recipe was last built to, if the file is still there in full length."""
        try:
            record = json.loads(self.record(name, recipe_key).read_text())
            path = self.root / record["file"]
            if path.stat().st_size != record["size"]:
                return None
        except (OSError, KeyError, ValueError):
            return None
        return Built(path=path, digest=record["digest"], size=record["size"], inputs=tuple(record["inputs"]))

    def record(self, name: str, recipe_key: str) -> Path:
        return self.root / f"{name}-{recipe_key}.json"

    def publish(self, name: str, recipe_key: str, built: Built, *, work: Path) -> Built:
        """Give a finished file its name, and then the record that leads to it."""
        published = self.root / built.path.name
        built.path.replace(published)
        record = asdict(built) | {"path": None, "file": published.name}
        (work / "record.json").write_text(json.dumps(record, indent=1))
        (work / "record.json").replace(self.record(name, recipe_key))
        return Built(path=published, digest=built.digest, size=built.size, inputs=built.inputs)

    @contextmanager
    def building(self) -> Iterator[Path]:
        """Hold the lock, and give a directory to work in that vanishes at the end."""
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with (self.root / "lock").open("w") as lock:
                what = f"another build to release {lock.name}"
                wait_until(what, lambda: try_lock(lock), limit=WAIT_SECONDS, interval=POLL_SECONDS)
                for left in self.root.glob("work-*"):  # only a killed build can have left it: we hold the lock
                    shutil.rmtree(left)
                with tempfile.TemporaryDirectory(prefix="work-", dir=self.root) as work:
                    try:
                        yield Path(work)
                    except BaseException:
                        shutil.rmtree(self.apt, ignore_errors=True)  # apt leaves a part of its index on a full disk
                        raise


def try_lock(lock: IO[str]) -> bool:
    """Take the lock if no other build has it; the kernel frees the lock of a build that dies."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def copy_to(built: Built, directory: Path, *, name: str) -> Path:
    """Copy an image to ``<directory>/<name>.tar``; the file appears there only in full."""
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".copy-", dir=directory) as work:
            copied = shutil.copyfile(built.path, Path(work) / "image")
            return copied.replace(directory / f"{name}.tar")


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Say in the user's words what a file system refuses."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise BedError(
                f"no space is left for an image in {where}",
                hint="Free some, or name another directory in TESTBED_CACHE.",
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}:
            raise BedError(
                f"{error.filename or where} cannot be written: {error.strerror}",
                hint="Run as root, or name a directory of your own in TESTBED_CACHE.",
            ) from error
        raise
