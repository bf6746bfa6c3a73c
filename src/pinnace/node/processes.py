"""All processes of a node: what they use, and to which container they belong. See also ``limits.memory``."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from pinnace.node.containers import PROC, mount_namespace

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process, with the time of its children that have ended."""

    pid: int
    parent: int
    mounts: str  # the mount namespace: every container has its own, and what is executed in it later joins it
    cpu: float  # seconds
    started: float  # seconds after the host's start
    private: int  # bytes
    shared: int  # bytes of files and shared memory


@dataclass(frozen=True, kw_only=True)
class Usage:
    cpu: float
    memory: int


def parse_process(pid: int, stat: str, status: str, mounts: str) -> Process:
    """From ``/proc/PID/stat`` and ``status``, see proc(5)."""
    fields = stat.rpartition(")")[2].split()  # the name before it may have anything in it
    sizes = dict(line.split(":", 1) for line in status.split("\n") if line.startswith("Rss"))
    anonymous, files, shared = (
        int(sizes.get(name, "0").split()[0]) << 10 for name in ("RssAnon", "RssFile", "RssShmem")
    )
    return Process(
        pid=pid,
        parent=int(fields[1]),
        mounts=mounts,
        cpu=sum(map(int, fields[11:15])) / TICKS,
        started=int(fields[19]) / TICKS,
        private=anonymous,
        shared=files + shared,
    )


def read_processes() -> dict[int, Process]:
    found = {}
    for path in PROC.iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                stat, status = (
                    (path / "stat").read_text(errors="replace"),
                    (path / "status").read_text(errors="replace"),
                )
                found[int(path.name)] = parse_process(int(path.name), stat, status, mount_namespace(path.name))
    return found


def owners(processes: dict[int, Process], firsts: set[int]) -> dict[int, int]:
    """For every process of a container, the container's first one: by mount namespace, else that of its parent."""
    spaces = {processes[pid].mounts: pid for pid in firsts if pid in processes}
    found: dict[int, int] = {}
    for pid in sorted(processes):
        line = [pid]
        while (process := processes.get(line[-1])) and process.mounts not in spaces and process.parent not in line:
            line.append(process.parent)
        if process and process.mounts in spaces:
            found[pid] = spaces[process.mounts]
    return found


def total(processes: list[Process]) -> Usage:
    """CPU is exact while parents wait for their children. What is shared is taken to be shared by all."""
    private, shared = sum(p.private for p in processes), max((p.shared for p in processes), default=0)
    return Usage(cpu=sum(p.cpu for p in processes), memory=private + shared)
