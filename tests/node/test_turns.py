"""Nodes that start a few at a time on a host."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from pinnace.node import turns

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("cpus", "places"), [(1, 1), (2, 1), (3, 1), (64, 32)])
def test_half_of_the_cores_at_a_time(cpus: int, places: int) -> None:
    assert turns.at_a_time(cpus) == places


def test_who_comes_late_waits_until_a_turn_is_handed_on(tmp_path: Path) -> None:
    first, second = (turns.take(tmp_path, os.getuid(), 2) for _ in range(2))
    assert not first.waited
    assert not second.waited
    late: list[turns.Turn] = []
    waiting = threading.Thread(target=lambda: late.append(turns.take(tmp_path, os.getuid(), 2)))
    waiting.start()
    waiting.join(3 * turns.PAUSE)
    assert not late
    second.hand_on()
    waiting.join(30)
    assert late[0].waited
    assert late[0].lock is not None


def test_a_turn_can_be_handed_on_by_another_process(tmp_path: Path) -> None:
    held = turns.take(tmp_path, os.getuid(), 1)
    if (pid := os.fork()) == 0:
        held.hand_on()
        os._exit(0)
    os.waitpid(pid, 0)
    assert not turns.take(tmp_path, os.getuid(), 1).waited


def test_a_turn_ends_with_whoever_holds_it(tmp_path: Path) -> None:
    if (pid := os.fork()) == 0:
        turns.take(tmp_path, os.getuid(), 1)
        os._exit(0)
    os.waitpid(pid, 0)
    assert not turns.take(tmp_path, os.getuid(), 1).waited


def test_nobody_waits_for_a_directory_that_others_may_have_made(tmp_path: Path) -> None:
    (tmp_path / f"pinnace-turns-{os.getuid()}").mkdir(mode=0o755)
    assert turns.take(tmp_path, os.getuid(), 1) == turns.Turn()


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns.take(tmp_path, os.getuid(), 1)
    monkeypatch.setattr(turns, "LIMIT", 0.1)
    late = turns.take(tmp_path, os.getuid(), 1)
    assert late.waited
    assert late.lock is None
