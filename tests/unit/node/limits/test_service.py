"""Containers over their limit are killed, others live. A mount namespace makes a container; containerd is a script."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.node.limits.affinity import CpuPool
from pinnace.node.limits.container_limits import ContainerLimits
from pinnace.node.limits.service import LimitsService, charged_volumes, publish_argv, task_oom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
LIMIT = 10.0
OWN = frozenset(os.sched_getaffinity(0))
GROWS = """
import os, sys, time
print("ready", flush=True)
sys.stdin.readline()
children = int(sys.argv[2])
if not children or 0 in [os.fork() for _ in range(children)]:
    kept = bytearray(os.urandom(1 << 20)) * int(sys.argv[1])
time.sleep(60)
"""

needs_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode != 0,
    reason="there are no user namespaces",
)


class Node:
    """Containers, and the service that watches them."""

    def __init__(self, directory: Path, containerd: list[str]) -> None:
        self.processes: dict[str, subprocess.Popen[str]] = {}
        (directory / "tasks").mkdir()
        pool = CpuPool(available=OWN, permitted=OWN)
        self.service = LimitsService(tasks=directory / "tasks", run_directory=directory, pool=pool, publish=containerd)

    def create(self, name: str, limit: int | None, *, takes: int, children: int = 0) -> subprocess.Popen[str]:
        argv = ["unshare", "-Urm", sys.executable, "-S", "-c", GROWS, str(takes), str(children)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
        self.processes[name] = process
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        bundle = self.service.tasks / name
        bundle.mkdir()
        notes = {
            "container-type": "container",
            "sandbox-namespace": "space",
            "sandbox-name": "pod",
            "container-name": name,
        }
        config = {"annotations": {f"io.kubernetes.cri.{key}": value for key, value in notes.items()}}
        (bundle / "config.json").write_text(json.dumps(config))
        (bundle / "init.pid").write_text(str(process.pid))
        ContainerLimits(memory=limit).write(bundle)
        self.service.changed([name])
        return process

    def grow(self, name: str) -> None:
        process = self.processes[name]
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()

    def run_until(self, done: Callable[[], bool]) -> float:
        begin = time.monotonic()
        while not done():
            assert time.monotonic() - begin < LIMIT
            pause = self.service.step()
            time.sleep(0.05 if pause is None else min(pause, 0.05))
        return time.monotonic() - begin

    def end(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    script = f"import sys; open({str(tmp_path / 'events')!r}, 'ab').write(sys.stdin.buffer.read())"
    made = Node(tmp_path, [sys.executable, "-S", "-c", script])
    yield made
    made.end()


@needs_namespaces
@pytest.mark.parametrize("children", [0, 2])
def test_a_container_over_its_limit_is_killed_and_its_neighbours_live(
    node: Node, tmp_path: Path, capfd: pytest.CaptureFixture[str], children: int
) -> None:
    greedy = node.create("greedy", 64 * MIB, takes=200, children=children)
    modest = node.create("modest", 64 * MIB, takes=20)
    free = node.create("free", None, takes=200)
    for name in node.processes:
        node.grow(name)
    node.run_until(lambda: greedy.poll() is not None)
    assert greedy.returncode == -signal.SIGKILL
    assert (tmp_path / "events").read_bytes() == task_oom("greedy")
    assert "OOMKilled: space/pod, container greedy uses" in capfd.readouterr().err
    node.run_until(lambda: not node.service.kills)
    for _ in range(4):
        node.service.step()
    assert modest.poll() is free.poll() is None
    assert set(node.service.watched) == {"modest"}


@needs_namespaces
def test_a_limit_that_is_raised_or_taken_away_counts_from_then_on(node: Node) -> None:
    node.create("a", 64 * MIB, takes=100)
    for limit in (200 * MIB, None):
        ContainerLimits(memory=limit).write(node.service.tasks / "a")
        node.service.changed(["a"])
    node.grow("a")
    begin = time.monotonic()
    node.run_until(lambda: time.monotonic() > begin + 1)
    assert node.processes["a"].poll() is None
    assert node.service.step() is None, "nothing to look at"
    ContainerLimits(memory=64 * MIB).write(node.service.tasks / "a")
    node.service.changed(["a"])
    node.run_until(lambda: node.processes["a"].poll() is not None)


@needs_namespaces
def test_a_container_is_killed_also_if_nobody_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pinnace.node.limits.service.PUBLISH_LIMIT", 0.5)
    node = Node(tmp_path, ["/nowhere/containerd"])
    try:
        greedy = node.create("greedy", 64 * MIB, takes=200)
        node.grow("greedy")
        node.run_until(lambda: greedy.poll() is not None)
    finally:
        node.end()
    assert "containerd is not told" in capfd.readouterr().err


def test_without_limits_there_is_nothing_to_do(node: Node) -> None:
    assert node.service.step() is None
    node.service.changed(["gone"])
    assert node.service.step() is None


def test_a_container_that_never_begins_is_given_up(node: Node) -> None:
    bundle = node.service.tasks / "a"
    bundle.mkdir()
    ContainerLimits(memory=MIB).write(bundle)
    node.service.changed(["a"])
    assert node.service.step() is not None
    for file in bundle.iterdir():
        file.unlink()
    bundle.rmdir()
    node.service.changed([])
    assert node.service.step() is None


def test_a_volume_counts_towards_the_container_with_the_highest_limit() -> None:
    def limits(memory: int | None, *tmpfs: str) -> ContainerLimits:
        return ContainerLimits(memory=memory, tmpfs=tmpfs)

    assert charged_volumes({"a": limits(5, "/dev/shm"), "b": limits(9, "/dev/shm")}) == {"b": ("/dev/shm",)}
    assert charged_volumes({"a": limits(5, "/dev/shm"), "b": limits(None, "/dev/shm")}) == {}
    assert charged_volumes({"a": limits(5, "/no/such")}) == {}


def test_the_event_is_as_containerd_reads_it() -> None:
    assert task_oom("abc") == b"\x0a\x19containerd.events.TaskOOM\x12\x05\x0a\x03abc"
    assert len(task_oom("a" * 300)) == 2 + 25 + 3 + 3 + 300
    assert publish_argv("containerd", "/c.sock")[1:4] == ["--address", "/c.sock", "publish"]
