"""What containers use: parsed from /proc, and counted for the right one."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from pinnace.node.containers import Container, read_containers
from pinnace.node.processes import Process, owners, parse_process, read_processes, total
from pinnace.node.services.usage import Meter

if TYPE_CHECKING:
    from pathlib import Path


def process(pid: int, parent: int, mounts: str, *, cpu: float = 0, private: int = 0, shared: int = 0) -> Process:
    return Process(pid=pid, parent=parent, mounts=mounts, cpu=cpu, started=0, private=private, shared=shared)


def test_a_process_is_parsed_whatever_its_name() -> None:
    stat = "7 (a) b (c) S 3 " + " ".join(["0"] * 9) + " 100 20 3 7 " + " ".join(["0"] * 4) + " 500 0"
    status = "Name:\ta\x0bRss\nRssAnon:\t 10 kB\nRssFile:\t 2 kB\nRssShmem:\t 1 kB\n"
    parsed = parse_process(7, stat, status, "mnt:[1]")
    assert (parsed.parent, parsed.cpu, parsed.started) == (3, 1.3, 5.0)
    assert (parsed.private, parsed.shared) == (10 << 10, 3 << 10)


def test_processes_belong_to_the_container_that_they_are_in() -> None:
    everybody = [
        process(1, 0, "host"),
        process(10, 1, "host"),  # a shim
        process(11, 10, "one"),
        process(12, 11, "one"),
        process(13, 12, "made in there"),
        process(14, 10, "one"),  # what `kubectl exec` starts
        process(21, 10, "two"),
        process(99, 98, "host"),  # whose parent has just ended
    ]
    found = owners({process.pid: process for process in everybody}, {11, 21, 77})
    assert found == {11: 11, 12: 11, 13: 11, 14: 11, 21: 21}


def test_shared_memory_is_counted_once() -> None:
    used = total([process(1, 0, "", cpu=1, private=5, shared=7), process(2, 0, "", cpu=2, private=6, shared=3)])
    assert (used.cpu, used.memory) == (3, 18)


def test_this_process_is_measured() -> None:
    begin, busy_since = read_processes()[os.getpid()], time.process_time()  # the first counts children that have ended
    block = bytearray(os.urandom(1 << 20)) * 50
    while time.process_time() < busy_since + 0.3:
        pass
    end = read_processes()[os.getpid()]
    assert end.cpu - begin.cpu > 0.2
    assert end.private - begin.private > len(block) * 0.9


def test_containers_are_read_from_their_bundles(tmp_path: Path) -> None:
    for name, kind, pid in (("a", "container", "5"), ("b", "sandbox", "6"), ("c", "container", "")):
        bundle = tmp_path / name
        bundle.mkdir()
        notes = {"container-type": kind, "sandbox-namespace": "space", "sandbox-name": "pod", "container-name": name}
        config = {"annotations": {f"io.kubernetes.cri.{key}": value for key, value in notes.items()}}
        (bundle / "config.json").write_text(json.dumps(config))
        (bundle / "init.pid").write_text(pid)
    (tmp_path / "gone").mkdir()
    assert read_containers(tmp_path) == [Container(namespace="space", pod="pod", name="a", pid=5)]


def test_a_node_is_measured_as_the_kubelet_would_say_it() -> None:
    meter = Meter()
    first, second = (dict(line.split() for line in meter.text().splitlines()) for _ in range(2))
    assert set(first) >= {"node_cpu_usage_seconds_total", "node_memory_working_set_bytes"}
    assert float(second["node_cpu_usage_seconds_total"]) >= float(first["node_cpu_usage_seconds_total"]) > 0
    assert int(first["node_memory_working_set_bytes"]) > 1 << 20
