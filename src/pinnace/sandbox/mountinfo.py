"""What is mounted, from /proc/PID/mountinfo (see proc(5)).

Any user of the host may be able to mount something, at a place whose name is no text, or has Unicode's line ends in it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class MountPoint:
    """A line of mountinfo. ``device`` is as in "8:1"; ``options`` are those of the file system."""

    device: str
    root: str
    target: str
    filesystem: str
    options: str


def mount_table(process: int | str = "self") -> str:
    """The mounts that a process sees, as the kernel says it."""
    return os.fsdecode(Path(f"/proc/{process}/mountinfo").read_bytes())


def mount_points(table: str) -> list[MountPoint]:
    return [_mount_point(line.split(" ")) for line in table.split("\n") if line]


def _mount_point(words: list[str]) -> MountPoint:
    dash = words.index("-")
    return MountPoint(
        device=words[2],
        root=_plain(words[3]),
        target=_plain(words[4]),
        filesystem=words[dash + 1],
        options=_plain(words[dash + 3]),
    )


def _plain(text: str) -> str:
    """Without the kernel's escapes for spaces and line ends."""
    return os.fsdecode(OCTAL.sub(lambda found: bytes([int(found[1], 8)]), os.fsencode(text)))
