"""Files of jobs, read and written with the bridge's rights: never outside the directory that was named.

A job can leave anything in its directory: a link to a file of the bridge's user, a FIFO that never ends, a file that
is replaced between a look and the opening. So each component of a path is opened relative to the one before, without
following links; links that stay inside are followed here, one by one. Only regular files are read.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import secrets
import stat
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from pinnace.errors import PinnaceError
from pinnace.validation import is_plain, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINKS = 16  # symbolic links in one path
DEPTH = 64  # directories below each other
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1 << 20
# What the kernel shows of processes and devices belongs to the bridge, not to a job.
KERNEL = ("/proc", "/sys", "/dev")


class StagingError(PinnaceError):
    """A script, an input or a result that there is not, or that may not be."""


@dataclass
class Budget:
    """What may be spent on the files of one job at a time: others wait meanwhile."""

    files: int = 100_000
    seconds: float = 600.0
    begun: float = field(default_factory=time.monotonic)

    def spend(self, files: int = 0) -> None:
        self.files -= files
        if self.files < 0:
            raise StagingError("these are too many files to be copied by the bridge: pack them into one")
        if time.monotonic() - self.begun > self.seconds:
            raise StagingError(f"the files could not be copied in {self.seconds:.0f} s: let the job copy them")


def named(text: str) -> Path:
    """A place that is named in full."""
    if not is_plain(text):
        raise StagingError(f"{printable(repr(text), 200)} is no path")
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise StagingError(f"{printable(text, 200)}: {error}") from error
    if not path.is_absolute():
        raise StagingError(f"{printable(text, 200)} does not begin with / or ~/")
    written, real = Path(os.path.normpath(path)), Path(os.path.realpath(path))
    if any(found.is_relative_to(place) for found in (written, real) for place in KERNEL):
        raise StagingError(f"{printable(text, 200)} is the kernel's, and no file of a job")
    return path


def parts_of(name: str) -> list[str]:
    """The components of a path below a directory."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts or not parts or not is_plain(name):
        raise StagingError(f"{printable(repr(name), 200)} is outside the job's directory, or no path")
    return parts


class Tree:
    """A directory, and what is in it."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        """The directory itself is named in full, and may be reached through links."""
        self.path = path
        if make:
            path.mkdir(parents=True, exist_ok=True)
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    # --- ways through it ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _parent(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        """The directory that has the last component, opened step by step."""
        handle = os.dup(self._root)
        try:
            for part in parts[:-1]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                below = os.open(part, DIRECTORY, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def resolve(self, name: str) -> list[str]:
        """The components of a path without links. Links are followed as long as they stay inside."""
        rest, done = parts_of(name), list[str]()
        links = 0
        while rest:
            part = rest.pop(0)
            if part == "..":
                if not done:
                    raise self._outside(name)
                done.pop()
                continue
            try:
                with self._parent([*done, part]) as parent:
                    target = os.readlink(part, dir_fd=parent)
            except OSError as error:
                if error.errno not in {errno.EINVAL, errno.ENOENT}:  # no link, or nothing yet
                    raise
                done.append(part)
                continue
            links += 1
            if links > LINKS or target.startswith("/"):
                raise self._outside(name)
            rest = [word for word in target.split("/") if word not in {"", "."}] + rest
        if not done:
            raise self._outside(name)
        return done

    def _outside(self, name: str) -> StagingError:
        return StagingError(f"{printable(name, 200)} leads to a place that is outside {self.path}")

    def matches(self, pattern: str, budget: Budget) -> list[str]:
        """The paths that a pattern means, in order; at least one."""
        wanted = parts_of(pattern)
        if not set("*?[") & set(pattern):
            found = ["/".join(wanted)] if self._has(self.resolve(pattern)) else []
        else:
            found = sorted(set(self._matching(os.dup(self._root), "", _collapsed(wanted), budget, DEPTH)))
        if not found:
            raise StagingError(f"there is no result {printable(pattern, 200)} in {self.path}")
        return found

    def _has(self, parts: list[str]) -> bool:
        try:
            with self._parent(parts) as parent:
                os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _matching(self, handle: int, before: str, wanted: list[str], budget: Budget, depth: int) -> Iterator[str]:
        """Closes ``handle``. Links are matched by name and never searched."""
        with _closing(handle):
            first, rest = wanted[0], wanted[1:]
            names = sorted(os.listdir(handle))
            budget.spend(len(names))
            if first == "**" and rest:
                yield from self._matching(os.dup(handle), before, rest, budget, depth)
            for name in names:
                path, below = f"{before}{name}", _is_directory(name, handle)
                hit = first == "**" or fnmatch.fnmatchcase(name, first)
                if not is_plain(name):
                    continue
                if hit and not rest:
                    yield path
                if below and hit and depth and (rest or first == "**"):
                    following = wanted if first == "**" else rest
                    with contextlib.suppress(OSError):
                        opened = os.open(name, DIRECTORY, dir_fd=handle)
                        yield from self._matching(opened, f"{path}/", following, budget, depth - 1)

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, name: str) -> BinaryIO:
        """A regular file, opened."""
        parts = self.resolve(name)
        with self._parent(parts) as parent:
            return regular(os.open(parts[-1], READ, dir_fd=parent), name)

    def is_directory(self, name: str) -> bool:
        """Whether a path leads to a directory inside."""
        parts = self.resolve(name)
        with self._parent(parts) as parent:
            return _is_directory(parts[-1], parent)

    def walk(self, name: str, budget: Budget) -> Iterator[tuple[str, os.stat_result]]:
        """A path and everything below it. Links below it are named and not followed."""
        parts = self.resolve(name)
        with self._parent(parts) as parent:
            about = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            yield from self._walk(parent, name, about, budget, last=parts[-1])

    def everything(self, budget: Budget) -> Iterator[tuple[str, os.stat_result]]:
        """The same for all that is in the directory."""
        for name in sorted(os.listdir(self._root)):  # noqa: PTH208 - an open directory
            about = os.stat(name, dir_fd=self._root, follow_symlinks=False)
            yield from self._walk(self._root, name, about, budget, last=name)

    def _walk(
        self, parent: int, name: str, about: os.stat_result, budget: Budget, *, last: str, depth: int = DEPTH
    ) -> Iterator[tuple[str, os.stat_result]]:
        budget.spend(1)
        yield name, about
        if not stat.S_ISDIR(about.st_mode):
            return
        if not depth:
            raise StagingError(f"{printable(name, 200)} has too many directories below each other")
        with _closing(os.open(last, DIRECTORY, dir_fd=parent)) as handle:
            for below in sorted(os.listdir(handle)):  # noqa: PTH208 - an open directory
                found = os.stat(below, dir_fd=handle, follow_symlinks=False)
                yield from self._walk(handle, f"{name}/{below}", found, budget, last=below, depth=depth - 1)

    def link(self, name: str) -> str:
        with self._parent(name.split("/")) as parent:
            return os.readlink(name.rpartition("/")[2], dir_fd=parent)

    # --- writing ------------------------------------------------------------------------------------------------

    def write(
        self,
        name: str,
        content: Callable[[BinaryIO], object],
        *,
        like: os.stat_result | None = None,
        mode: int = 0o600,
    ) -> None:
        """A file that appears whole, in place of whatever had its name: that is never opened."""
        *above, last = parts_of(name)
        parts = [*(self.resolve("/".join(above)) if above else ()), last]
        with self._parent(parts, make=True) as parent:
            part = f".{secrets.token_hex(8)}.part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(part, flags, 0o600, dir_fd=parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    content(file)
                    file.flush()
                    os.fchmod(handle, stat.S_IMODE(like.st_mode) & 0o777 if like else mode)
                    if like:
                        os.utime(handle, ns=(like.st_atime_ns, like.st_mtime_ns))
                os.replace(part, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=parent)
                raise

    def make_directory(self, name: str) -> None:
        parts = self.resolve(name)
        with self._parent([*parts, "."], make=True):
            pass

    def make_link(self, name: str, target: str) -> None:
        parts = parts_of(name)
        with self._parent(parts, make=True) as parent, contextlib.suppress(FileExistsError):
            os.symlink(target, parts[-1], dir_fd=parent)


def copy(source: Tree, name: str, target: Tree, to: str, budget: Budget) -> None:
    """A file or a directory of one tree into another. Links stay links; anything else than files is refused."""
    for entry in source.walk(name, budget):
        _copy_one(entry, source, target, to + entry[0].removeprefix(name), budget)


def _copy_one(entry: tuple[str, os.stat_result], source: Tree, target: Tree, to: str, budget: Budget) -> None:
    path, about = entry
    if stat.S_ISDIR(about.st_mode):
        target.make_directory(to)
    elif stat.S_ISLNK(about.st_mode):
        target.make_link(to, source.link(path))
    else:
        with source.read(path) as file:
            target.write(to, partial(pour, file, budget=budget), like=about)


def copy_named(source: Path, target: Tree, to: str, budget: Budget) -> None:
    """A file or a directory that is named in full, links included, into a tree."""
    if not source.is_dir():
        with open_named(source) as file:
            target.write(to, partial(pour, file, budget=budget), like=os.fstat(file.fileno()))
        return
    target.make_directory(to)
    with Tree(source) as tree:
        for entry in tree.everything(budget):
            _copy_one(entry, tree, target, f"{to}/{entry[0]}", budget)


def open_named(path: Path) -> BinaryIO:
    """A regular file that is named in full."""
    return regular(os.open(path, READ & ~os.O_NOFOLLOW), str(path))


def read_named(path: Path, most: int) -> bytes:
    with open_named(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise StagingError(f"{printable(str(path), 200)} is larger than {most >> 10} KiB")
    return data


def replace_file(path: Path, text: str) -> None:
    """A small file of the bridge's own, written without opening what may be there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Tree(path.parent) as tree:
        tree.write(path.name, lambda file: file.write(text.encode()), mode=0o644)


def regular(handle: int, name: str) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StagingError(f"{printable(name, 200)} is no regular file")
    return os.fdopen(handle, "rb")


def pour(source: BinaryIO, target: BinaryIO, budget: Budget) -> None:
    while data := source.read(CHUNK):
        budget.spend()
        target.write(data)


def _collapsed(parts: list[str]) -> list[str]:
    """``**/**`` means no more than ``**``, and costs more."""
    return [part for number, part in enumerate(parts) if part != "**" or parts[number - 1 : number] != ["**"]]


def _is_directory(name: str, parent: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)
