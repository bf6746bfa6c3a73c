"""Reading marks: of commands, of the batch script, of nodes, and of who submitted the jobs of nodes that join."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.timeline.recorder import DIRECTORY, MarkEvent

if TYPE_CHECKING:
    from pathlib import Path

LOGIN = "login"  # where commands run
MAX_SIZE = 8 << 20  # bytes of a file that are read


@dataclass(frozen=True, kw_only=True)
class Mark:
    """That something happened to a step. ``where`` is the name of a node, or LOGIN."""

    time: float  # seconds since the epoch
    where: str
    step: str
    event: MarkEvent


def parse_marks(text: str, where: str) -> list[Mark]:
    """The marks of a file. Lines that are none are left out: the writer may have been killed in the middle of one."""
    found = []
    for line in text.splitlines():
        try:
            data = json.loads(line)
            event = MarkEvent(data["event"])
            found.append(Mark(time=float(data["time"]), where=where, step=str(data["step"]), event=event))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def read_marks(cluster: Path) -> list[Mark]:
    """All marks of a cluster, in the order of time."""
    directory = cluster / DIRECTORY
    files = [(path, LOGIN) for path in (directory / "batch.jsonl", *(directory / "commands").glob("[!.]*.jsonl"))]
    files += [(path, path.stem) for part in ("submissions", "nodes") for path in (directory / part).glob("[!.]*.jsonl")]
    found = [mark for path, where in files for mark in parse_marks(read_text(path), where)]
    return sorted(found, key=lambda mark: mark.time)


def read_text(path: Path) -> str:
    """The beginning of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_SIZE).decode(errors="replace")
    except OSError:
        return ""
