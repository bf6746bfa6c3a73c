"""CPU limits of real processes. A mount namespace makes a container."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.node.limits import affinity
from pinnace.node.limits.affinity import CpuPool, assigned, confine, enforce, rebalance
from pinnace.node.limits.container_limits import ContainerLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWN = frozenset(os.sched_getaffinity(0))
POOL = CpuPool(available=OWN, permitted=OWN)

pytestmark = [
    pytest.mark.skipif(len(OWN) < 2, reason="there is one CPU"),
    pytest.mark.skipif(
        subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode != 0,
        reason="there are no user namespaces",
    ),
]


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Path]:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    yield tasks
    for pid in tasks.glob("*/init.pid"):
        os.kill(int(pid.read_text()), signal.SIGKILL)
        os.waitpid(int(pid.read_text()), 0)


def container(tasks: Path, name: str, limits: ContainerLimits, *, runs: bool = True) -> Path:
    bundle = tasks / name
    bundle.mkdir()
    limits.write(bundle)
    if runs:
        process = subprocess.Popen(["unshare", "-Urm", "sleep", "60"])
        process.returncode = 0  # it is waited for by its pid
        while os.readlink(f"/proc/{process.pid}/exe").endswith("/unshare"):  # noqa: PTH115
            time.sleep(0.01)
        (bundle / "init.pid").write_text(str(process.pid))
    return bundle


def mask(bundle: Path) -> frozenset[int]:
    return frozenset(os.sched_getaffinity(int((bundle / "init.pid").read_text())))


def test_a_container_is_confined_and_released(tasks: Path, tmp_path: Path) -> None:
    limited = container(tasks, "limited", ContainerLimits(cpus=1))
    free = container(tasks, "free", ContainerLimits())
    rebalance(tasks, POOL, tmp_path / "lock")
    assert len(mask(limited)) == 1
    assert mask(limited) == assigned(limited)
    assert mask(free) == OWN
    assert assigned(free) is None
    ContainerLimits(cpus=len(OWN)).write(limited)
    rebalance(tasks, POOL, tmp_path / "lock")
    assert mask(limited) == OWN
    assert assigned(limited) is None


def test_others_leave_the_cpus_of_a_guaranteed_pod_and_return(tasks: Path, tmp_path: Path) -> None:
    free = container(tasks, "free", ContainerLimits())
    own = container(tasks, "own", ContainerLimits(cpus=1, exclusive=True), runs=False)
    rebalance(tasks, POOL, tmp_path / "lock")
    cpus = assigned(own)
    assert cpus is not None
    assert mask(free) == OWN - cpus
    for file in own.iterdir():
        file.unlink()
    own.rmdir()
    rebalance(tasks, POOL, tmp_path / "lock")
    assert mask(free) == OWN


def test_a_process_that_has_left_is_brought_back(tasks: Path, tmp_path: Path) -> None:
    limited = container(tasks, "limited", ContainerLimits(cpus=1))
    rebalance(tasks, POOL, tmp_path / "lock")
    os.sched_setaffinity(int((limited / "init.pid").read_text()), OWN)
    enforce(tasks)
    assert mask(limited) == assigned(limited)


def test_a_job_that_is_bound_to_some_cpus_stays_there(tasks: Path, tmp_path: Path) -> None:
    one = frozenset([min(OWN)])
    free = container(tasks, "free", ContainerLimits())
    rebalance(tasks, CpuPool(available=one, permitted=OWN), tmp_path / "lock")
    assert mask(free) == one


def test_a_container_that_waits_to_be_started(tasks: Path) -> None:
    waiting = container(tasks, "waiting", ContainerLimits(cpus=1))
    confine(int((waiting / "init.pid").read_text()), frozenset([max(OWN)]))
    assert mask(waiting) == {max(OWN)}


def test_the_cpus_of_this_process() -> None:
    pool = CpuPool.of_this_process(None)
    assert pool.available == OWN
    assert pool.permitted >= OWN
    assert frozenset(os.sched_getaffinity(0)) == OWN
    assert CpuPool.of_this_process(affinity.MAX_CPUS).available == pool.permitted
