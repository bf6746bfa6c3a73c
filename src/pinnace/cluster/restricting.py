"""What a restricted cluster is asked to be: checked before anything is started."""

from __future__ import annotations

import itertools
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.cluster.directory import home
from pinnace.controlplane.podsecurity import LEVELS, class_name
from pinnace.errors import UsageError
from pinnace.sandbox import scratch
from pinnace.spec import Restriction

if TYPE_CHECKING:
    from collections.abc import Iterable

WRITABLE = ":rw"
# Of the system, and of a node's own: no data is there that pods should share.
SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/lib", "/var/log", "/var/run")


def restriction(level: str | None, host_paths: Iterable[str | Path]) -> Restriction | None:
    """None for a cluster that is not restricted."""
    paths = list(map(str, host_paths))
    if level is None:
        if paths:
            raise UsageError(
                "--allow-host-path is for restricted clusters; in others a pod can have every directory of yours",
                hint="Add --restricted.",
            )
        return None
    if level not in LEVELS:
        raise UsageError(f"a cluster cannot be {level!r}", hint=f"One of {', '.join(LEVELS)}.")
    readable = checked_paths(path.removesuffix(WRITABLE) for path in paths)
    writable = checked_paths(path.removesuffix(WRITABLE) for path in paths if path.endswith(WRITABLE))
    for path in writable:
        if not is_closed(Path(path)):
            raise UsageError(
                f"--allow-host-path {path}{WRITABLE}: other users of the hosts can go there, and a program that a pod "
                "puts there could let them act as you (setuid)",
                hint=f"Offer it without {WRITABLE}, or close a directory above it to others: chmod go-x.",
            )
    return Restriction(level=level, host_paths=readable, writable=writable)


def is_closed(path: Path) -> bool:
    """Whether a directory on the way keeps all others out."""
    return any(not place.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for place in (path, *path.parents))


def checked_paths(given: Iterable[str | Path]) -> tuple[str, ...]:
    """The directories as they are called without symbolic links; each of them fit for others' hands."""
    found = [_directory(Path(path)) for path in given]
    for path in found:
        if reason := why_private(path):
            raise UsageError(
                f"--allow-host-path {path}: {reason}", hint="List a directory that has nothing but shared data in it."
            )
    for one, other in itertools.combinations(found, 2):
        if _within(one, other) or _within(other, one):
            raise UsageError(
                f"--allow-host-path: {one} and {other} are one within the other",
                hint="Whoever can write to the outer one could put a link in place of the inner one. List one of them.",
            )
        if class_name(str(one)) == class_name(str(other)):
            raise UsageError(f"--allow-host-path: the storage classes of {one} and {other} would have the same name")
    return tuple(map(str, found))


def _directory(path: Path) -> Path:
    if not path.is_absolute() or not path.is_dir():
        raise UsageError(f"--allow-host-path {path}: there is no such directory", hint="Give its full path.")
    return path.resolve()


def why_private(path: Path) -> str:
    """Why others must not have a directory: by what is in it, or by what it is in. Empty if they may."""
    for private, what in (
        (home(), "pinnace's own directory, with the secrets of your clusters"),
        (Path.home(), "your home"),
        (Path(sys.prefix), "the programs that you run pinnace with"),
        (scratch.base(os.environ), "where the nodes keep their files"),
        (Path("/tmp"), "where the nodes keep their files"),  # noqa: S108 - not to use it, but to keep others from it
        *((Path(part), "a directory of the system") for part in SYSTEM),
    ):
        if _within(private.resolve(), path):
            return f"it holds {private}, {what}" if path != private.resolve() else f"it is {what}"
    for private in (home(), *map(Path, SYSTEM)):
        if _within(path, private.resolve()):
            return f"it is in {private}"
    for parent in path.parents:
        about = parent.stat()
        closed = not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or about.st_mode & stat.S_ISVTX
        if about.st_uid not in {0, os.getuid()} or not closed:
            return f"others than you can change {parent}, and put a link to anything of yours in its place"
    return ""


def _within(path: Path, top: Path) -> bool:
    return path == top or top in path.parents
