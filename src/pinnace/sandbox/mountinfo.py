"""Mount points, from /proc/PID/mountinfo (see proc(5)).

Any user of the host may be able to mount something at a path that is not valid UTF-8, or that has Unicode's line ends
in it. So paths are decoded as the file system's, and lines end with a line feed only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

OCTAL_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class MountPoint:
    """A line of mountinfo. ``device`` is as in "8:1"; ``options`` are those of the file system."""

    device: str
    root: str
    target: str
    filesystem: str
    options: str


def mount_table(process: int | str = "self") -> str:
    """The text of a process's mountinfo."""
    return os.fsdecode(Path(f"/proc/{process}/mountinfo").read_bytes())


def mount_points(table: str) -> list[MountPoint]:
    """Parse the text of a mountinfo file."""
    return [_mount_point(line.split(" ")) for line in table.split("\n") if line]


def filesystem_on(target: str, table: str) -> str:
    """The type of the file system that is mounted on a directory; empty if none is. The last mount counts."""
    types = [point.filesystem for point in mount_points(table) if point.target == target]
    return types[-1] if types else ""


def filesystem_of_device(device: int, table: str) -> str:
    """The type of the file system on a device (``st_dev``); empty if it is not mounted."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((point.filesystem for point in mount_points(table) if point.device == number), "")


def _mount_point(fields: list[str]) -> MountPoint:
    separator = fields.index("-")
    return MountPoint(
        device=fields[2],
        root=_unescape(fields[3]),
        target=_unescape(fields[4]),
        filesystem=fields[separator + 1],
        options=_unescape(fields[separator + 3]),
    )


def _unescape(text: str) -> str:
    """Replace the kernel's octal escapes, which stand for spaces and line ends."""
    return os.fsdecode(OCTAL_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), os.fsencode(text)))
