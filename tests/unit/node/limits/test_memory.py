"""How much memory is counted: of text from /proc, and of real processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.node.containers import mount_namespace
from pinnace.node.limits.memory import (
    FAR_INTERVAL,
    LOOK_INTERVAL,
    MIN_INTERVAL,
    Members,
    MemoryUse,
    ProcessTable,
    Watched,
    over_limit,
    parent,
    rollup_memory,
    status_memory,
    used,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SHARED = """
import mmap, os, sys, time
kind, size = sys.argv[1], int(sys.argv[2]) << 20
block = mmap.mmap(-1, size, flags=mmap.MAP_SHARED if kind == "shared" else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, size, 4096):
    block[page] = 1
children = [os.fork() for _ in range(3) if os.getppid() == int(sys.argv[3])]
for page in range(0, size, 4096):
    block[page]  # a forked process has no page of a shared mapping before it touches it
if os.getppid() == int(sys.argv[3]):
    time.sleep(0.5)
    print("ready", flush=True)
time.sleep(60)
"""


def test_what_the_kernel_says() -> None:
    status = "Name:\ta\nRssAnon:\t  10 kB\nRssFile:\t  2 kB\nRssShmem:\t  1 kB\nThreads:\t1\n"
    assert status_memory(status) == MemoryUse(anonymous=10 << 10, shared=1 << 10)
    rollup = (
        "55d0-7ffe ---p 00000000 00:00 0    [rollup]\nPss:  9 kB\nPss_Anon:   5 kB\nPss_File:  3 kB\nPss_Shmem:  2 kB\n"
    )
    assert rollup_memory(rollup) == MemoryUse(anonymous=5 << 10, shared=2 << 10)
    assert status_memory("") == rollup_memory("") == MemoryUse()
    assert parent("7 (a) b (c) S 3 0 0") == "3"
    assert not parent("")


def test_shared_memory_that_is_mapped_may_be_that_of_a_volume() -> None:
    assert used(MemoryUse(anonymous=5, shared=3), 2) == 8
    assert used(MemoryUse(anonymous=5, shared=3), 7) == 12


@pytest.fixture(params=["private", "shared"])
def family(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process with 40 MiB that it shares with three children, which it has forked."""
    argv = [sys.executable, "-S", "-c", SHARED, request.param, "40", str(os.getpid())]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        os.killpg(process.pid, 9)


def members_of(process: subprocess.Popen[str]) -> Members:
    """A process and its children, in a table in which they are the only ones of a container."""
    table = ProcessTable()
    members = table.add(process.pid)
    table._members = {}  # all others are in our mount namespace too
    table._owners[str(process.pid)] = members
    members.processes.clear()
    table.search(0.0)
    table._members = {members.space: members}
    table._own(str(process.pid), 0.0)
    return members


def test_what_forked_processes_share_is_counted_once(family: subprocess.Popen[str]) -> None:
    members = members_of(family)
    try:
        assert len(members.processes) == 4, members.processes
        estimate, files, exact = members.estimate(), members.without_files(0.0), members.exact(0.0)
        assert estimate.anonymous + estimate.shared > 100 * MIB, "each counted"
        assert 100 * MIB < files.anonymous + files.shared <= estimate.anonymous + estimate.shared + MIB
        assert 40 * MIB < exact.anonymous + exact.shared < 60 * MIB
        watched = Watched(container="c", limit=80 * MIB, members=members)
        assert over_limit(watched, time.monotonic()) is None
        watched = Watched(container="c", limit=30 * MIB, members=members)
        assert (over_limit(watched, time.monotonic()) or 0) > 40 * MIB
    finally:
        members.close()


def test_a_process_that_ends_is_forgotten() -> None:
    process = subprocess.Popen(["sleep", "60"])
    table = ProcessTable()
    members = table.add(os.getpid())
    assert members.space == mount_namespace(process.pid)
    table.search(0.0)
    assert {str(process.pid), str(os.getpid())} <= members.processes.keys()
    process.kill()
    process.wait()
    members.estimate()
    assert str(process.pid) not in members.processes
    table.search(0.1)
    table.remove(members)
    assert not members.processes


def test_one_that_grows_is_looked_at_before_it_can_be_at_its_limit() -> None:
    members = Members(first="", space="")
    watched = Watched(container="c", limit=1 << 40, members=members)
    now = 1000 * LOOK_INTERVAL
    over_limit(watched, now)
    assert watched.due == now + FAR_INTERVAL
    block = mmap.mmap(-1, 30 * MIB)
    table = ProcessTable()
    watched.members = table.add(os.getpid())
    table.search(now)
    watched.members.processes = {str(os.getpid()): watched.members.processes[str(os.getpid())]}
    over_limit(watched, now)
    watched.limit = watched.last + 25 * MIB
    block.write(b"x" * (20 * MIB))
    over_limit(watched, now + 0.1)
    assert MIN_INTERVAL <= watched.due - now - 0.1 < LOOK_INTERVAL / 2
