"""Removing directories in which others have made files: of any depth, and never anything outside of them.

``shutil.rmtree`` calls itself for every level (in Python 3.11), and pods make more levels than Python has frames. This
one keeps a list of the levels and one open directory. It is no ``rm``, because a node's monitor removes files when it
cannot start processes any more: the first process of their PID namespace has ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class _Level:
    """A directory between the top and where we are. ``left`` are the directories in it that are still to be entered."""

    name: str
    device: int
    inode: int
    left: list[str]


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it. What cannot be removed stays; symbolic links are not followed."""
    with contextlib.suppress(OSError):
        _Emptying(os.open(path, DIRECTORY)).run()
    with contextlib.suppress(OSError):
        path.rmdir()


class _Emptying:
    """Removes what is in a directory, deepest first. Other file systems that are mounted in it are left alone."""

    def __init__(self, top: int) -> None:
        self._here = top
        self._levels: list[_Level] = []

    def run(self) -> None:
        try:
            self._arrive("", os.fstat(self._here))
            while self._levels[-1].left or len(self._levels) > 1:
                if self._levels[-1].left:
                    self._enter(self._levels[-1].left.pop())
                else:
                    self._leave()
        finally:
            os.close(self._here)

    def _arrive(self, name: str, about: os.stat_result) -> None:
        """Remove what is no directory from the one that we are in now."""
        left = []
        for entry in self._entries():
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=self._here)
        self._levels.append(_Level(name=name, device=about.st_dev, inode=about.st_ino, left=left))

    def _entries(self) -> list[os.DirEntry[str]]:
        with contextlib.suppress(OSError), os.scandir(self._here) as found:
            return list(found)
        return []

    def _enter(self, name: str) -> None:
        try:
            below, about = self._open(name)
        except OSError:
            self._remove(name)  # it may be empty
            return
        os.close(self._here)
        self._here = below
        self._arrive(name, about)

    def _open(self, name: str) -> tuple[int, os.stat_result]:
        """A directory in this one, if there is a way back: one that we may not search has none."""
        below = os.open(name, DIRECTORY, dir_fd=self._here)
        try:
            os.close(os.open("..", DIRECTORY, dir_fd=below))
            return below, self._same_device(os.fstat(below))
        except OSError:
            os.close(below)
            raise

    def _same_device(self, about: os.stat_result) -> os.stat_result:
        if about.st_dev != self._levels[-1].device:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return about

    def _leave(self) -> None:
        """Go up, and remove the directory that we come from. Who has moved it meanwhile leads us nowhere else."""
        name = self._levels.pop().name
        above = os.open("..", DIRECTORY, dir_fd=self._here)
        os.close(self._here)
        self._here = above
        about, expected = os.fstat(above), self._levels[-1]
        if (about.st_dev, about.st_ino) != (expected.device, expected.inode):
            raise OSError(f"{name} was moved")
        self._remove(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self._here)
