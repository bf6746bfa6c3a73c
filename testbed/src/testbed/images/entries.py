"""What an image consists of: files, directories and links, as values.

A package's files and a recipe's own ones are the same kind of thing, so that one writer serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Entry", "Kind", "Span", "directory", "file", "link", "merge_usr"]

# The directories that Debian moved under /usr; packages of Debian 12 still ship files in both places.
MOVED = frozenset({"bin", "sbin", "lib", "lib32", "lib64", "libx32"})


class Kind(StrEnum):
    """The types of a tar member that an image may have; Debian packages hold no others."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A file's bytes, kept in a spool on disk: an image may be larger than the memory one wants to give it."""

    start: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One path of an image, without a leading slash. ``xattrs`` are pax records, such as file capabilities."""

    path: str
    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    target: str = ""
    content: bytes | Span = b""
    xattrs: tuple[tuple[str, str], ...] = ()


def file(path: str, text: str, *, mode: int = 0o644) -> Entry:
    """Return a text file of root's."""
    return Entry(path=path, kind=Kind.FILE, mode=mode, content=text.encode())


def directory(path: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Entry:
    """Return a directory."""
    return Entry(path=path, kind=Kind.DIRECTORY, mode=mode, uid=uid, gid=gid)


def link(path: str, target: str) -> Entry:
    """Return a symbolic link."""
    return Entry(path=path, kind=Kind.SYMLINK, mode=0o777, target=target)


def merge_usr(path: str) -> str:
    """Return where a path of a package lies once /bin, /sbin and /lib are links into /usr."""
    return f"usr/{path}" if path.partition("/")[0] in MOVED else path
