"""The state file, the lock, waiting, and the command line's refusals."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from testbed import cli, layout
from testbed.errors import BedError, WaitError
from testbed.namespaces import start_time
from testbed.plan import Plan
from testbed.state import Directories, Holder, Phase, State, locked
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    return Directories(state=tmp_path / "state", cache=tmp_path / "cache")


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["testbed", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_the_state_survives_the_disk(directories: Directories) -> None:
    directories.state.mkdir()
    state = State(
        plan=Plan(hosts=2), phase=Phase.UP, holders={"n1": Holder(pid=1, start_time=2)}, cut=frozenset({"n1"})
    )
    state.write(directories)
    assert State.read(directories) == state


def test_no_file_is_no_state(directories: Directories) -> None:
    assert State.read(directories) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "up"}', '{"phase": "sideways", "plan": {}}'])
def test_a_damaged_file_says_what_to_do(directories: Directories, text: str) -> None:
    directories.state.mkdir()
    directories.file.write_text(text)
    with pytest.raises(BedError) as caught:
        State.read(directories)
    assert caught.value.hint == "testbed clean"


def test_a_pid_that_another_process_has_by_now_is_not_alive() -> None:
    begun = start_time(os.getpid())
    assert begun is not None
    assert Holder(pid=os.getpid(), start_time=begun).alive()
    assert not Holder(pid=os.getpid(), start_time=begun - 1).alive()


def test_only_one_at_a_time(directories: Directories) -> None:
    told: list[str] = []
    with locked(directories, waiting=told.append):
        assert told == []
        with (
            pytest.raises(BedError, match="Another testbed command"),
            locked(directories, waiting=told.append, limit=0.2),
        ):
            pass
    assert len(told) == 1
    with locked(directories, waiting=told.append, limit=0):
        assert len(told) == 1


def test_waiting_in_vain_shows_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" * 100 + "it is broken\n")
    with pytest.raises(WaitError, match=r"for a miracle, in vain(?s:.*)it is broken") as caught:
        wait_until("a miracle", lambda: False, limit=0, log=log)
    assert caught.value.message.count("first") < 20


def test_removing_keeps_the_lock_and_nothing_else(directories: Directories) -> None:
    (directories.state / "hosts/n1").mkdir(parents=True)
    directories.file.write_text("")
    directories.lock.touch()
    layout.remove(directories)
    assert list(directories.state.iterdir()) == [directories.lock]


@pytest.mark.parametrize(
    "arguments", [("up",), ("down",), ("clean",), ("status",), ("run", "--", "true"), ("freeze", "n1")]
)
def test_without_root_it_says_so(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert call(*arguments, monkeypatch=monkeypatch) == 1
    captured = capsys.readouterr()
    assert "needs root" in captured.err
    assert "Hint: sudo" in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert call("--debug", "down", monkeypatch=monkeypatch) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [("up", "--hosts", "0"), ("up", "--hosts", "many"), ("sideways",), ("run",), ("up", "--link-rate", "x")],
)
def test_a_wrong_request_ends_with_2(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(*arguments, monkeypatch=monkeypatch) == 2


def test_without_a_bed_it_says_how_to_get_one(
    directories: Directories, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("TESTBED_STATE", str(directories.state))
    assert call("run", "--", "true", monkeypatch=monkeypatch) == 1
    assert "Hint: testbed up" in capsys.readouterr().err
