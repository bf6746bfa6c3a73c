"""Faults, and coming back from them, on a real bed. Each test leaves all hosts idle."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from testbed.errors import BedError
from testbed.status import HostState
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Bed

pytestmark = pytest.mark.bed

DOWN_LIMIT = 60.0  # SlurmdTimeout is 10 s, and slurmctld looks now and then


def node_is(bed: Bed, host: str, state: str) -> bool:
    return bed.nodes().get(host, "").rstrip("*") == state


def await_node(bed: Bed, host: str, state: str) -> None:
    wait_until(f"{host} to be {state}", lambda: node_is(bed, host, state), limit=DOWN_LIMIT, interval=0.3)


def state_of(bed: Bed, host: str) -> HostState:
    return next(status.state for status in bed.status() if status.name == host)


def reaches(bed: Bed, host: str) -> bool:
    """Can n1 open a connection to that host's slurmd?"""
    command = ["timeout", "2", "bash", "-c", f"exec 3<>/dev/tcp/{host}/6818"]
    return bed.run(command, on="n1", check=False).returncode == 0


@pytest.fixture(autouse=True)
def idle_afterwards(bed: Bed) -> Iterator[None]:
    """Also after a test that failed half-way: the next one shall fail for reasons of its own."""
    yield
    repair = {HostState.DOWN: bed.start_host, HostState.CUT: bed.join_link, HostState.FROZEN: bed.thaw}
    for status in bed.status():
        if status.state in repair:
            repair[status.state](status.name)
    wait_until("all nodes to be idle", bed.all_idle, limit=DOWN_LIMIT, interval=0.3)


def test_a_host_loses_power_and_comes_back(bed: Bed) -> None:
    bed.run(["sh", "-c", "echo kept >/tmp/disk; echo lost >/dev/shm/memory"], on="n2")
    with bed.popen(["sh", "-c", "echo ready; exec sleep 600"], on="n2") as process:
        assert process.stdout is not None
        process.stdout.readline()
        bed.kill_host("n2")
        assert process.wait(20) == 137
    assert state_of(bed, "n2") is HostState.DOWN
    with pytest.raises(BedError, match="n2 is down"):
        bed.run(["true"], on="n2")
    await_node(bed, "n2", "down")
    bed.start_host("n2")
    await_node(bed, "n2", "idle")
    assert bed.run(["cat", "/tmp/disk"], on="n2").stdout == "kept\n"
    assert bed.run(["ls", "/dev/shm/memory"], on="n2", check=False).returncode != 0
    assert bed.run(["srun", "-w", "n2", "hostname"]).stdout == "n2\n"
    with pytest.raises(BedError, match="n2 is up"):
        bed.start_host("n2")


def test_a_cable_is_pulled_and_plugged_in_again(bed: Bed) -> None:
    assert reaches(bed, "n3")
    bed.cut_link("n3")
    assert not reaches(bed, "n3")
    assert state_of(bed, "n3") is HostState.CUT
    assert bed.run(["hostname"], on="n3").stdout == "n3\n", "the host itself is well"
    bed.join_link("n3")
    assert state_of(bed, "n3") is HostState.UP
    wait_until("n3 to be reached", lambda: reaches(bed, "n3"), limit=60)


def test_a_host_hangs_and_goes_on(bed: Bed) -> None:
    script = "while :; do date +%s%N >>/tmp/ticks; sleep 0.02; done"
    with bed.popen(["sh", "-c", script], on="n2") as process:
        ticks = bed.directories.host("n2") / "tmp/ticks"
        wait_until("ticks", ticks.exists, limit=60)
        bed.freeze("n2")
        assert state_of(bed, "n2") is HostState.FROZEN
        size = ticks.stat().st_size
        with pytest.raises(BedError, match="not frozen"):
            bed.thaw("n3")
        assert ticks.stat().st_size == size
        bed.thaw("n2")
        wait_until("ticks to go on", lambda: ticks.stat().st_size > size, limit=60)
        process.terminate()
    assert state_of(bed, "n2") is HostState.UP


def test_a_frozen_host_can_lose_power(bed: Bed) -> None:
    bed.freeze("n3")
    bed.kill_host("n3")
    bed.start_host("n3")
    assert bed.run(["hostname"], on="n3").stdout == "n3\n"


def test_jobs_outlive_a_restart_of_slurmctld(bed: Bed) -> None:
    match = re.search(r"\d+", bed.run(["sbatch", "-w", "n1", "--wrap", "sleep 600"]).stdout)
    assert match
    job = match.group()

    def running() -> bool:
        return bed.run(["squeue", "-h", "-j", job, "-o", "%T"], check=False).stdout == "RUNNING\n"

    wait_until(f"job {job} to run", running, limit=60, interval=0.2)
    before = daemon_pid(bed, "login", "slurmctld")
    bed.restart("slurmctld")
    assert daemon_pid(bed, "login", "slurmctld") not in (before, None)
    wait_until(f"job {job} to be known again", running, limit=60, interval=0.2)
    bed.run(["scancel", job])


@pytest.mark.parametrize("name", ["slurmdbd", "slurmrestd", "slurmd:n1", "munged:n1"])
def test_daemons_restart(bed: Bed, name: str) -> None:
    daemon, _, host = name.partition(":")
    before = daemon_pid(bed, host or "login", daemon)
    bed.restart(name)
    assert daemon_pid(bed, host or "login", daemon) not in (before, None)
    assert bed.run(["srun", "-w", "n1", "hostname"]).stdout == "n1\n"


def daemon_pid(bed: Bed, host: str, name: str) -> int | None:
    status = next(status for status in bed.status() if status.name == host)
    return next(daemon.pid for daemon in status.daemons if daemon.name == name)
