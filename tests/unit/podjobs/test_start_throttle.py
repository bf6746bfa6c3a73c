"""Nodes that start a few at a time on a host."""

from __future__ import annotations

import fcntl
import os
import threading
from typing import TYPE_CHECKING

import pytest

from pinnace.podjobs import start_throttle
from pinnace.sandbox import scratch

if TYPE_CHECKING:
    from pathlib import Path

UID = os.getuid()


def take(base: Path, places: int) -> start_throttle.StartSlot:
    return start_throttle.acquire(scratch.make(base, UID), UID, places)


@pytest.mark.parametrize(("cpus", "places"), [(1, 1), (2, 1), (3, 1), (64, 32)])
def test_half_of_the_cores_at_a_time(cpus: int, places: int) -> None:
    assert start_throttle.max_starting(cpus) == places


def test_who_comes_late_waits_until_a_turn_is_handed_on(tmp_path: Path) -> None:
    first, second = (take(tmp_path, 2) for _ in range(2))
    assert not first.waited
    assert not second.waited
    late: list[start_throttle.StartSlot] = []
    waiting = threading.Thread(target=lambda: late.append(take(tmp_path, 2)))
    waiting.start()
    waiting.join(3 * start_throttle.POLL_INTERVAL)
    assert not late
    second.release()
    waiting.join(30)
    assert late[0].waited


def test_a_turn_can_be_handed_on_by_another_process(tmp_path: Path) -> None:
    held = take(tmp_path, 1)
    if (pid := os.fork()) == 0:
        held.release()
        os._exit(0)
    os.waitpid(pid, 0)
    assert not take(tmp_path, 1).waited


def test_a_turn_ends_with_the_node_that_has_it(tmp_path: Path) -> None:
    if (pid := os.fork()) == 0:
        take(tmp_path, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    assert not take(tmp_path, 1).waited


def test_what_others_have_made_does_not_count(tmp_path: Path) -> None:
    for name in ("x", "y"):
        other = tmp_path / f"{scratch.prefix(UID)}{name}"
        other.mkdir()
        (other / start_throttle.MARKER).touch()
    assert not take(tmp_path, 1).waited


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_marks_of_other_users_do_not_count(tmp_path: Path) -> None:
    """In /tmp anybody can make such directories, with a mark in them and a lock that is held."""
    tmp_path.chmod(0o1777)
    held = []
    for name in ("x", "y"):
        other = tmp_path / f"{scratch.prefix(UID)}{name}"
        other.mkdir(mode=0o777)
        other.chmod(0o777)
        (other / start_throttle.MARKER).touch()
        os.utime(other / start_throttle.MARKER, (0, 0))
        held.append((other / scratch.LOCK).open("w"))
        (other / scratch.LOCK).chmod(0o666)
        fcntl.flock(held[-1], fcntl.LOCK_EX)
        os.chown(other, 12345, 12345)
    (tmp_path / f"{scratch.prefix(UID)}z").symlink_to(scratch.make(tmp_path, UID + 1))
    try:
        assert not take(tmp_path, 1).waited
    finally:
        for file in held:
            file.close()


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path, 1)
    monkeypatch.setattr(start_throttle, "WAIT_LIMIT", 0.1)
    assert take(tmp_path, 1).waited
