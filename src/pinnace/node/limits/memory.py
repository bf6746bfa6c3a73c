"""How much memory containers use, from /proc, cheaply enough to look several times a second.

What counts is what the kernel could not give back without the container's help: anonymous memory, and shared memory
with the tmpfs volumes that are the container's. Page cache is not counted; a memory cgroup would reclaim it.

The first look at a container reads ``statm`` of its processes, which is kept open. It counts too much: files that are
mapped, and pages that forked processes share. Only if that is over the limit does ``status`` say how much of it are
files; and only if that is over the limit does ``smaps_rollup`` say what is shared, which takes the kernel a walk
through the page tables.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.node.containers import all_pids, mount_namespace

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = os.sysconf("SC_PAGE_SIZE")
YOUNG = 2.0  # seconds in which a new process may still enter the mount namespace of its container
RUNC_LIMIT = 10.0  # seconds in which a process may still be runc, that will become the container's
LOOK_INTERVAL = 0.25  # seconds between looks at a container that does not grow
FAR_INTERVAL = 0.5  # the same at one that uses less than half of its limit
MIN_INTERVAL = 0.02  # the same at one that will soon be at its limit
EXACT_SHARE = 20  # Walks through page tables take no more than this part of a core.
RUNC = "runc:["  # begins the name of such a process


@dataclass(kw_only=True)
class Member:
    """A process of a container, with its ``statm`` open."""

    pid: str
    statm: int
    since: float

    def pages(self) -> tuple[int, int]:
        """Resident pages, and how many of them are files or shared memory. ProcessLookupError if it has ended."""
        words = os.pread(self.statm, 128, 0).split()
        return int(words[1]), int(words[2])


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes."""

    anonymous: int = 0
    shared: int = 0

    def __add__(self, other: MemoryUse) -> MemoryUse:
        return MemoryUse(anonymous=self.anonymous + other.anonymous, shared=self.shared + other.shared)


@dataclass(kw_only=True)
class Members:
    """The processes of one container."""

    first: str
    space: str
    processes: dict[str, Member] = field(default_factory=dict)

    def estimate(self) -> MemoryUse:
        """All that the processes have, files too. Those that have ended are forgotten."""
        anonymous = shared = 0
        for pid, member in list(self.processes.items()):
            try:
                resident, other = member.pages()
            except (ProcessLookupError, IndexError):
                self.forget(pid)
            else:
                anonymous += resident - other
                shared += other
        return MemoryUse(anonymous=anonymous * PAGE, shared=shared * PAGE)

    def without_files(self, now: float) -> MemoryUse:
        """The same without files."""
        return _sum(status_memory(read(f"/proc/{pid}/status")) for pid in self._counted(now))

    def exact(self, now: float) -> MemoryUse:
        """Every page once: what processes share is divided among them."""
        return _sum(self._exact(pid) for pid in self._counted(now))

    def forget(self, pid: str) -> None:
        os.close(self.processes.pop(pid).statm)

    def close(self) -> None:
        for pid in list(self.processes):
            self.forget(pid)

    @staticmethod
    def _exact(pid: str) -> MemoryUse:
        """Falls back on what counts shared pages for each process, if the kernel does not say more."""
        rollup = read(f"/proc/{pid}/smaps_rollup")
        return rollup_memory(rollup) if rollup else status_memory(read(f"/proc/{pid}/status"))

    def _counted(self, now: float) -> list[str]:
        """Without runc, which has more memory than many a container may have, and is about to become its process."""
        return [
            pid
            for pid, member in self.processes.items()
            if now - member.since > RUNC_LIMIT or not read(f"/proc/{pid}/comm").startswith(RUNC)
        ]


class ProcessTable:
    """Which process is of which container, kept from look to look."""

    def __init__(self) -> None:
        self._members: dict[str, Members] = {}  # by mount namespace
        self._owners: dict[str, Members | None] = {}  # by process
        self._young: dict[str, float] = {}  # processes of no container, and when they were seen first
        self._newest = ""

    def add(self, pid: int) -> Members:
        """Watch a container by its first process. OSError if that has ended."""
        members = Members(first=str(pid), space=mount_namespace(pid))
        self._members[members.space] = members
        # Processes that were not known to be of a container may be of this one.
        self._owners = {pid: owner for pid, owner in self._owners.items() if owner}
        self._newest = ""
        return members

    def remove(self, members: Members) -> None:
        members.close()
        self._members.pop(members.space, None)
        self._owners = {pid: owner for pid, owner in self._owners.items() if owner is not members}

    def search(self, now: float) -> None:
        """Find the processes that are new. To list all is what costs most, so that is done if there is any."""
        newest = newest_pid()
        if newest != self._newest:
            self._newest = newest
            self._list(now)
        for pid, seen in list(self._young.items()):
            self._own(pid, now)
            if self._owners.get(pid) or now - seen > YOUNG:
                del self._young[pid]

    def _list(self, now: float) -> None:
        """Sort in the processes that are new, and forget those that have ended."""
        pids = all_pids()
        for pid in self._owners.keys() - pids:
            owner = self._owners.pop(pid)
            self._young.pop(pid, None)
            if owner and pid in owner.processes:
                owner.forget(pid)
        for pid in sorted(pids - self._owners.keys(), key=int):
            self._own(pid, now)
            if not self._owners[pid]:
                self._young[pid] = now

    def _own(self, pid: str, now: float) -> None:
        """Find the container of a process: by its mount namespace, else that of its parent."""
        owner = None
        with contextlib.suppress(OSError):  # it has ended
            owner = self._members.get(mount_namespace(pid)) or self._owners.get(parent(read(f"/proc/{pid}/stat")))
            if owner and pid not in owner.processes:
                statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
                owner.processes[pid] = Member(pid=pid, statm=statm, since=now)
        self._owners[pid] = owner


@dataclass(kw_only=True)
class Watched:
    """A container with a limit of memory."""

    container: str
    limit: int
    members: Members
    volumes: tuple[str, ...] = ()  # tmpfs that count towards it
    due: float = 0.0
    exact_due: float = 0.0
    last: int = 0
    last_time: float = 0.0


def over_limit(watched: Watched, now: float) -> int | None:
    """How much memory a container uses, if that is more than it may."""
    estimate, volumes = watched.members.estimate(), tmpfs_used(watched.volumes)
    upper = used(estimate, volumes)
    _plan(watched, upper, now)
    if upper <= watched.limit or now < watched.exact_due:
        return None
    if used(watched.members.without_files(now), volumes) <= watched.limit:
        return None
    begin = time.monotonic()
    exact = used(watched.members.exact(now), volumes)
    watched.exact_due = now + max(LOOK_INTERVAL, EXACT_SHARE * (time.monotonic() - begin))
    return exact if exact > watched.limit else None


def _plan(watched: Watched, upper: int, now: float) -> None:
    """Look again with all others; but before a container that grows could be at its limit."""
    growth, elapsed = upper - watched.last, now - watched.last_time
    watched.last, watched.last_time = upper, now
    interval = FAR_INTERVAL if 2 * upper < watched.limit else LOOK_INTERVAL
    watched.due = (now // interval + 1) * interval
    if growth > 0 and 0 < elapsed < 2 * FAR_INTERVAL:
        until_limit = (watched.limit - upper) * elapsed / growth
        watched.due = min(watched.due, now + max(MIN_INTERVAL, until_limit / 2))


def used(memory: MemoryUse, volumes: int) -> int:
    """What counts. Shared memory that is mapped may be that of the volumes."""
    return memory.anonymous + max(memory.shared, volumes)


def tmpfs_used(volumes: Iterable[str]) -> int:
    total = 0
    for volume in volumes:
        with contextlib.suppress(OSError):  # it is unmounted already
            about = os.statvfs(volume)
            total += (about.f_blocks - about.f_bfree) * about.f_frsize
    return total


def status_memory(status: str) -> MemoryUse:
    """From ``/proc/PID/status``."""
    sizes = _sizes(status)
    return MemoryUse(anonymous=sizes.get("RssAnon", 0), shared=sizes.get("RssShmem", 0))


def rollup_memory(rollup: str) -> MemoryUse:
    """From ``/proc/PID/smaps_rollup``."""
    sizes = _sizes(rollup)
    return MemoryUse(anonymous=sizes.get("Pss_Anon", 0), shared=sizes.get("Pss_Shmem", 0))


def newest_pid() -> str:
    """The number that was given to a process of this PID namespace last, see proc(5)."""
    return read("/proc/loadavg").rpartition(" ")[2]


def parent(stat: str) -> str:
    """From ``/proc/PID/stat``; empty if the process has ended."""
    fields = stat.rpartition(")")[2].split()  # the name before it may have anything in it
    return fields[1] if fields else ""


def read(path: str) -> str:
    """A file of /proc; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


def _sizes(text: str) -> dict[str, int]:
    lines = (line.partition(":") for line in text.split("\n") if line.endswith(" kB"))
    return {name: int(value.split()[0]) << 10 for name, _, value in lines}


def _sum(memories: Iterable[MemoryUse]) -> MemoryUse:
    return sum(memories, MemoryUse())
