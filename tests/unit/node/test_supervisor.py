"""Supervision, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.node.supervisor import GIVE_UP, BeyondHelpError, Service, Supervisor
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.node.supervisor.BACK_OFF", (0.0,))


def supervised(*found: Service) -> Supervisor:
    supervisor = Supervisor(lambda: None)
    for service in found:
        supervisor.add(service)
    return supervisor


def live_through(supervisor: Supervisor, ends: int) -> None:
    """Start what is due, and wait for so many ends."""
    for _ in range(ends):
        supervisor.tick()
        running = supervisor.services[0].process
        assert running
        _, status = os.waitpid(running.pid, 0)
        supervisor.reaped(running.pid, status)


def test_a_service_that_ends_is_started_again_and_its_end_is_reported(tmp_path: Path) -> None:
    supervisor = supervised(Service(name="short", argv=["sh", "-c", "exit 3"], log=tmp_path / "short.log"))
    live_through(supervisor, ends=2)
    assert supervisor.report() == [
        {"name": "short", "state": "restarting", "pid": None, "restarts": 2, "last_end": "exit code 3"}
    ]


def test_an_ordinary_service_is_never_given_up(tmp_path: Path) -> None:
    supervisor = supervised(Service(name="short", argv=["false"], log=tmp_path / "short.log"))
    live_through(supervisor, ends=GIVE_UP + 2)


def test_an_essential_service_that_does_not_stay_up_is_the_end_and_says_why(tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo the disk is full; exit 4"]
    supervisor = supervised(Service(name="etcd", argv=argv, log=tmp_path / "etcd.log", essential=True))
    live_through(supervisor, ends=GIVE_UP)
    with pytest.raises(BeyondHelpError, match=r"(?s)etcd does not stay up: 9 ends.* exit code 4\nthe disk is full"):
        live_through(supervisor, ends=1)


def test_an_essential_service_that_was_up_for_long_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.node.supervisor.STEADY", -1.0)
    supervisor = supervised(Service(name="etcd", argv=["false"], log=tmp_path / "etcd.log", essential=True))
    live_through(supervisor, ends=GIVE_UP + 2)
    assert supervisor.services[0].restarts == 1


def test_a_service_starts_when_what_it_waits_for_is_there(tmp_path: Path) -> None:
    there = tmp_path / "there"
    supervisor = supervised(Service(name="late", argv=["true"], log=tmp_path / "late.log", waits_for=there.exists))
    supervisor.tick()
    assert supervisor.report()[0]["state"] == "waiting"
    there.touch()
    live_through(supervisor, ends=1)


def test_a_service_that_is_stopped_stays_so(tmp_path: Path) -> None:
    supervisor = supervised(Service(name="long", argv=["sleep", "60"], log=tmp_path / "long.log"))
    supervisor.tick()
    process = supervisor.services[0].process
    assert process
    supervisor.stop("long")
    wait_until("it to end", lambda: process.poll() is not None, limit=60)
    supervisor.tick()
    assert supervisor.report() == []


NO_PROCESSES = """
import os, resource, sys, time
from pathlib import Path
from pinnace.node import services
os.setuid(64321)
supervisor = services.Supervisor(lambda: None)
supervisor.add(services.Service(name="short", argv=["true"], log=Path("/dev/null")))
resource.setrlimit(resource.RLIMIT_NPROC, (0, 100))
supervisor.tick()
print(supervisor.report()[0]["state"], supervisor.report()[0]["last_end"])
resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
time.sleep(services.NO_PROCESS_PAUSE)
supervisor.tick()
print(supervisor.report()[0]["state"])
"""


@pytest.mark.bed
def test_a_service_for_which_there_is_no_process_is_started_later() -> None:
    """The limit holds for all processes of a user, also those that pods have made."""
    done = subprocess.run([sys.executable, "-c", NO_PROCESSES], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == [
        "restarting not started: there is no process to be had",
        "running",
    ]
