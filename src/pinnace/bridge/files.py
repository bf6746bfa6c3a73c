"""Files of jobs, read and written with the bridge's rights: never outside the given directory.

A job can leave anything in its directory: a link to a file of the bridge's user, a FIFO that never ends, a file that is
replaced between stat and open. So each component of a path is opened relative to the one before, without following
links; links that stay inside are resolved here, one by one. Only regular files are read.
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

from pinnace.errors import StagingError
from pinnace.validation import is_plain, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_SYMLINKS = 16  # in one path
MAX_DEPTH = 64  # of nested directories
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK_SIZE = 1 << 20
# What the kernel shows there of processes and devices is the bridge's, not a job's.
KERNEL_DIRECTORIES = ("/proc", "/sys", "/dev")


@dataclass
class CopyBudget:
    """The limits of one copy for a job: other jobs wait meanwhile."""

    files: int = 100_000
    seconds: float = 600.0
    begun: float = field(default_factory=time.monotonic)

    def spend(self, files: int = 0) -> None:
        self.files -= files
        if self.files < 0:
            raise StagingError("these are too many files to be copied by the bridge: pack them into one")
        if time.monotonic() - self.begun > self.seconds:
            raise StagingError(f"the files could not be copied in {self.seconds:.0f} s: let the job copy them")


def absolute_path(text: str) -> Path:
    """Validate an absolute path, or one below a home, that a user gives."""
    if not is_plain(text):
        raise StagingError(f"{printable(repr(text), 200)} is no path")
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise StagingError(f"{printable(text, 200)}: {error}") from error
    if not path.is_absolute():
        raise StagingError(f"{printable(text, 200)} does not begin with / or ~/")
    written, real = Path(os.path.normpath(path)), Path(os.path.realpath(path))
    if any(found.is_relative_to(place) for found in (written, real) for place in KERNEL_DIRECTORIES):
        raise StagingError(f"{printable(text, 200)} is the kernel's, and no file of a job")
    return path


def parts_of(name: str) -> list[str]:
    """The components of a path below a directory."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts or not parts or not is_plain(name):
        raise StagingError(f"{printable(repr(name), 200)} is outside the job's directory, or no path")
    return parts


class Tree:
    """A directory whose contents are accessed safely."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        """The path of the directory itself may contain links."""
        self.path = path
        if make:
            path.mkdir(parents=True, exist_ok=True)
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    # --- resolving paths ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _parent(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        """Open the directory of the last component, component by component."""
        handle = os.dup(self._root)
        try:
            for part in parts[:-1]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                below = os.open(part, DIRECTORY_FLAGS, dir_fd=handle)
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
                if error.errno not in {errno.EINVAL, errno.ENOENT}:  # not a link, or it does not exist
                    raise
                done.append(part)
                continue
            links += 1
            if links > MAX_SYMLINKS or target.startswith("/"):
                raise self._outside(name)
            rest = [component for component in target.split("/") if component not in {"", "."}] + rest
        if not done:
            raise self._outside(name)
        return done

    def _outside(self, name: str) -> StagingError:
        return StagingError(f"{printable(name, 200)} leads to a place that is outside {self.path}")

    def matches(self, pattern: str, budget: CopyBudget) -> list[str]:
        """The paths that match a pattern, sorted; at least one."""
        wanted = parts_of(pattern)
        if not set("*?[") & set(pattern):
            found = ["/".join(wanted)] if self._has(self.resolve(pattern)) else []
        else:
            found = sorted(set(self._matching(os.dup(self._root), "", _collapsed(wanted), budget, MAX_DEPTH)))
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

    def _matching(self, handle: int, before: str, wanted: list[str], budget: CopyBudget, depth: int) -> Iterator[str]:
        """Search a directory, and close ``handle``. Links are matched by name and never followed."""
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
                        opened = os.open(name, DIRECTORY_FLAGS, dir_fd=handle)
                        yield from self._matching(opened, f"{path}/", following, budget, depth - 1)

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, name: str) -> BinaryIO:
        """Open a regular file."""
        parts = self.resolve(name)
        with self._parent(parts) as parent:
            return regular(os.open(parts[-1], READ_FLAGS, dir_fd=parent), name)

    def is_directory(self, name: str) -> bool:
        """Whether a path leads to a directory inside."""
        parts = self.resolve(name)
        with self._parent(parts) as parent:
            return _is_directory(parts[-1], parent)

    def walk(self, name: str, budget: CopyBudget) -> Iterator[tuple[str, os.stat_result]]:
        """A path and everything below it. Links below it are listed and not followed."""
        parts = self.resolve(name)
        with self._parent(parts) as parent:
            about = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            yield from self._walk(parent, name, about, budget, last=parts[-1])

    def everything(self, budget: CopyBudget) -> Iterator[tuple[str, os.stat_result]]:
        """All entries of the directory, and everything below them."""
        for name in sorted(os.listdir(self._root)):  # noqa: PTH208 - an open directory
            about = os.stat(name, dir_fd=self._root, follow_symlinks=False)
            yield from self._walk(self._root, name, about, budget, last=name)

    def _walk(
        self, parent: int, name: str, about: os.stat_result, budget: CopyBudget, *, last: str, depth: int = MAX_DEPTH
    ) -> Iterator[tuple[str, os.stat_result]]:
        budget.spend(1)
        yield name, about
        if not stat.S_ISDIR(about.st_mode):
            return
        if not depth:
            raise StagingError(f"{printable(name, 200)} has too many directories below each other")
        with _closing(os.open(last, DIRECTORY_FLAGS, dir_fd=parent)) as handle:
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
        """Write a file atomically. What had its name before is replaced and never opened."""
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


def copy(source: Tree, name: str, target: Tree, to: str, budget: CopyBudget) -> None:
    """Copy a file or a directory of one tree into another. Links stay links; special files are refused."""
    for entry in source.walk(name, budget):
        _copy_one(entry, source, target, to + entry[0].removeprefix(name), budget)


def _copy_one(entry: tuple[str, os.stat_result], source: Tree, target: Tree, to: str, budget: CopyBudget) -> None:
    path, about = entry
    if stat.S_ISDIR(about.st_mode):
        target.make_directory(to)
    elif stat.S_ISLNK(about.st_mode):
        target.make_link(to, source.link(path))
    else:
        with source.read(path) as file:
            target.write(to, partial(copy_stream, file, budget=budget), like=about)


def copy_from_path(source: Path, target: Tree, to: str, budget: CopyBudget) -> None:
    """Copy a file or a directory at a path, which may contain links, into a tree."""
    if not source.is_dir():
        with open_path(source) as file:
            target.write(to, partial(copy_stream, file, budget=budget), like=os.fstat(file.fileno()))
        return
    target.make_directory(to)
    with Tree(source) as tree:
        for entry in tree.everything(budget):
            _copy_one(entry, tree, target, f"{to}/{entry[0]}", budget)


def open_path(path: Path) -> BinaryIO:
    """Open a regular file at a path, which may contain links."""
    return regular(os.open(path, READ_FLAGS & ~os.O_NOFOLLOW), str(path))


def read_path(path: Path, max_size: int) -> bytes:
    with open_path(path) as file:
        data = file.read(max_size + 1)
    if len(data) > max_size:
        raise StagingError(f"{printable(str(path), 200)} is larger than {max_size >> 10} KiB")
    return data


def replace_file(path: Path, text: str) -> None:
    """Write a small file of the bridge atomically, without opening what had its name."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Tree(path.parent) as tree:
        tree.write(path.name, lambda file: file.write(text.encode()), mode=0o644)


def regular(handle: int, name: str) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StagingError(f"{printable(name, 200)} is no regular file")
    return os.fdopen(handle, "rb")


def copy_stream(source: BinaryIO, target: BinaryIO, budget: CopyBudget) -> None:
    while data := source.read(CHUNK_SIZE):
        budget.spend()
        target.write(data)


def _collapsed(parts: list[str]) -> list[str]:
    """Without repeated ``**``, which match the same and cost more."""
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
