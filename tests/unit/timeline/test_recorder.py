"""Recording marks: by several processes, to memory and to files, without ever failing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from pinnace.timeline.marks import LOGIN, parse_marks, read_marks
from pinnace.timeline.recorder import (
    MarkEvent,
    Recorder,
    StepName,
    batch_mark,
    command_marks,
    node_marks,
    process_began,
)


def test_marks_of_forked_processes_are_in_the_same_file(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.mark("agent", MarkEvent.BEGIN)
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            for count in range(50):
                recorder.mark(f"child {number} {count}", MarkEvent.BEGIN)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    recorder.save(tmp_path / "n1.jsonl")
    marks = parse_marks((tmp_path / "n1.jsonl").read_text(), "n1")
    assert len(marks) == 201
    assert {mark.step for mark in marks} == {"agent", *(f"child {n} {count}" for n in range(4) for count in range(50))}


def test_what_was_marked_before_a_file_was_there_is_written_to_it(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.mark(StepName.COMMAND, MarkEvent.BEGIN, at=12.5)
    path = command_marks(tmp_path)
    recorder.write_to(path)
    with recorder.step(StepName.SUBMISSION):
        pass
    recorder.write_to(path)  # the same again changes nothing
    marks = read_marks(tmp_path)
    assert [(mark.step, mark.event) for mark in marks] == [
        ("command", MarkEvent.BEGIN),
        ("submission", MarkEvent.BEGIN),
        ("submission", MarkEvent.END),
    ]
    assert marks[0].time == 12.5
    assert {mark.where for mark in marks} == {LOGIN}
    assert path.stat().st_mode & 0o077 == 0


def test_the_first_yes_is_marked_once(tmp_path: Path) -> None:
    recorder, answers = Recorder(), iter([False, True, True])
    ask = recorder.ready("containerd", lambda: next(answers))
    assert [ask(), ask(), ask()] == [False, True, True]
    recorder.save(node_marks(tmp_path, "n1"))
    assert [(mark.where, mark.step, mark.event) for mark in read_marks(tmp_path)] == [
        ("n1", "containerd", MarkEvent.READY)
    ]


def test_a_place_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "timeline").write_text("no directory")
    recorder = Recorder()
    recorder.mark("agent", MarkEvent.BEGIN)
    recorder.save(node_marks(tmp_path, "n1"))
    recorder.write_to(command_marks(tmp_path))
    recorder.mark("agent", MarkEvent.END)
    assert read_marks(tmp_path) == []


def test_lines_that_are_no_marks_are_left_out() -> None:
    text = (
        '{"time": 1.0, "step": "a", "event": "begin"}\n{"time": 2.0, "st\n[]\n{"time": 3, "step": "a", "event": "?"}\n'
    )
    assert [mark.step for mark in parse_marks(text, "n1")] == ["a"]


def test_the_batch_script_marks_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    before = time.time()
    subprocess.run(["bash", "-c", batch_mark()], cwd=tmp_path, check=True, env={"PATH": os.environ["PATH"]})
    (mark,) = read_marks(tmp_path)
    assert (mark.where, mark.step, mark.event) == (LOGIN, StepName.BATCH_SCRIPT, MarkEvent.BEGIN)
    assert before - 0.001 <= mark.time <= time.time() + 0.001


def test_a_batch_script_without_the_directory_goes_on(tmp_path: Path) -> None:
    plain = subprocess.run(["bash", "-c", f"{batch_mark()}\necho on"], cwd=tmp_path, check=True, capture_output=True)
    assert plain.stdout == b"on\n"


def test_when_this_process_began() -> None:
    assert time.time() - 24 * 3600 < process_began() < time.time()


def test_a_file_that_is_let_go_can_be_removed_and_written_to_again(tmp_path: Path) -> None:
    recorder, path = Recorder(), command_marks(tmp_path)
    recorder.write_to(path)
    recorder.mark("before", MarkEvent.BEGIN)
    recorder.close()
    assert str(path) not in open_files()
    recorder.mark("after", MarkEvent.BEGIN)
    recorder.close()
    recorder.close()
    recorder.mark("later", MarkEvent.BEGIN)
    recorder.write_to(path)
    assert [mark.step for mark in read_marks(tmp_path)] == ["before", "later"]


def open_files() -> list[str]:
    """The paths of all files that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return found
