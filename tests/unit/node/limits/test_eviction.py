"""Which pod goes when a node runs out of memory, and how that is noticed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pinnace.node.limits.eviction import (
    MIN_INTERVAL,
    OUTSIDE,
    THRESHOLD,
    Candidate,
    Eviction,
    _host_available,
    available,
    helps,
    message,
    ranked,
    requested,
)
from pinnace.node.limits.memory_cgroup import in_memory_cgroup
from pinnace.spec import Allocation

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

GIB, MIB = 1 << 30, 1 << 20


def candidate(name: str, used: int, requested: int = 0, priority: int = 0, pids: tuple[int, ...] = (1,)) -> Candidate:
    pod: dict[str, Any] = {"metadata": {"name": name}, "spec": {"priority": priority}}
    return Candidate(pod=pod, used=used, requested=requested, pids=[*pids])


def test_pods_go_in_the_kubelets_order() -> None:
    order = ranked([
        candidate("within its request", 900, 1000),
        candidate("guaranteed", 400, 400),
        candidate("a little above", 300, 250),
        candidate("best effort", 200),
        candidate("much above", 700, 300),
        candidate("important", 5000, 10, priority=1000),
        candidate("critical", 9000, priority=2_000_001_000),
        candidate("without processes", 0, pids=()),
    ])  # fmt: skip
    assert [found.pod["metadata"]["name"] for found in order] == [
        "much above", "best effort", "a little above", "important", "guaranteed", "within its request",
    ]  # fmt: skip


def test_no_pod_is_evicted_where_that_is_of_no_use() -> None:
    pods = [candidate("a", 50 * MIB), candidate("b", 60 * MIB)]
    assert helps(pods, 0)
    assert not helps(pods, -20 * MIB), "the job is too small for the node itself"


def test_what_a_pod_requests() -> None:
    def container(**requests: str) -> dict[str, Any]:
        return {"resources": {"requests": requests, "limits": {"memory": "1Gi"}}}

    pod = {"spec": {"containers": [container(memory="100Mi"), container(cpu="1"), {}]}}
    assert requested(pod) == 100 * MIB


def test_the_message_is_like_the_kubelets() -> None:
    text = message(candidate("a", 300 * MIB, 100 * MIB), 20 * MIB)
    assert text.startswith("The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi.")
    assert "was using 300Mi, request is 100Mi" in text


def test_memory_is_counted_as_slurm_counts_it() -> None:
    block = bytearray(os.urandom(1 << 20)) * 50
    free = available(Allocation(memory=64 * GIB))
    assert 64 * GIB - free - OUTSIDE > 0
    assert 64 * GIB - available(Allocation(memory=64 * GIB, memory_cgroup=True)) > len(block)
    assert available(Allocation()) > 0
    assert _host_available("MemTotal:  9 kB\nMemAvailable:   7 kB\n") == 7 << 10


def test_a_pod_is_evicted_only_under_pressure_and_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free, forked = [10 * GIB], list[int]()

    def fork(_work: object) -> int:
        forked.append(os.posix_spawnp("sleep", ["sleep", "0.3"], os.environ))
        return forked[-1]

    monkeypatch.setattr("pinnace.node.limits.eviction.available", lambda _allocation: free[0])
    monkeypatch.setattr("pinnace.node.limits.eviction.fork", fork)
    eviction = Eviction(allocation=Allocation(), kubeconfig=tmp_path, node="n")
    eviction.step(0.0)
    assert eviction.due == 5.0
    free[0] = THRESHOLD - 1
    eviction.step(1.0)
    assert not forked, "it is not time to look"
    eviction.step(5.0)
    assert len(forked) == 1
    assert eviction.due == 5.0 + MIN_INTERVAL
    eviction.step(6.0)
    assert len(forked) == 1, "one is under way"
    os.waitid(os.P_PID, forked[0], os.WEXITED | os.WNOWAIT)
    eviction.step(7.0)
    assert len(forked) == 2
    os.waitpid(forked[1], 0)


def test_a_memory_cgroup_of_a_job_is_found(tmp_path: Path) -> None:
    def limit(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")

    limit("system.slice/slurmstepd.scope/job_5/memory.max", "1073741824")
    limit("system.slice/slurmstepd.scope/job_5/step_0/memory.max", "max")
    limit("memory/slurm/uid_9/job_6/memory.limit_in_bytes", "9223372036854771712")
    limit("memory/slurm/uid_9/job_7/memory.limit_in_bytes", "1073741824")
    limit("memory/other/memory.limit_in_bytes", "1073741824")
    assert in_memory_cgroup("0::/system.slice/slurmstepd.scope/job_5/step_0\n", tmp_path)
    assert not in_memory_cgroup("0::/system.slice/slurmstepd.scope/job_8/step_0\n", tmp_path)
    assert in_memory_cgroup("5:cpu:/\n4:memory:/slurm/uid_9/job_7/step_0\n0::/\n", tmp_path)
    assert not in_memory_cgroup("4:memory:/slurm/uid_9/job_6/step_0\n", tmp_path)
    assert not in_memory_cgroup("4:memory:/other\n", tmp_path), "not Slurm's"
