"""A program whose log is read no faster than is good for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.node.services.kubelet_pacing import LIST_WAIT, held, paced, processor_share
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

# Writes as a kubelet does: each line at once, and when it could.
PROGRAM = """
import os, time
def say(text):
    os.write(1, f"{text}\\n".encode())
    open("times", "a").write(f"{time.monotonic()} {text}\\n")
for number in range(200): say(f"FLAG {number}")
say("Kubelet version")
time.sleep(0.5)  # and is busy
for text in ("Attempting to sync node with API server", "adding", "waiting", "watching"): say(text)
"""


@pytest.fixture
def times(tmp_path: Path) -> dict[str, float]:
    """When each line could be written, and when there was somebody to read them: ``ready``."""
    ready = tmp_path / "ready"
    output = paced(tmp_path / "log", ready.exists, tmp_path / "under-way")
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=output, cwd=tmp_path) as process:
        os.close(output)
        wait_until("its first line", (tmp_path / "times").exists, limit=30)
        time.sleep(0.3)
        begin = time.monotonic()
        ready.touch()
        process.wait(timeout=30)
    rows = [line.split(maxsplit=1) for line in (tmp_path / "times").read_text().splitlines()]
    wait_until("the whole log", lambda: (tmp_path / "log").read_text().count("\n") == len(rows), limit=30)
    assert (tmp_path / "log").read_text().splitlines() == [text for _, text in rows]
    assert (tmp_path / "under-way").exists()
    return {text: float(stamp) for stamp, text in rows} | {"ready": begin}


def test_it_waits_until_somebody_is_ready_and_then_for_what_it_has_asked(times: dict[str, float]) -> None:
    assert times["FLAG 0"] < times["ready"] < times["FLAG 1"]
    assert times["waiting"] - times["adding"] > LIST_WAIT / 2


def test_where_processes_share_the_processors_the_wait_is_longer() -> None:
    cpus = os.cpu_count() or 1
    assert processor_share("0.20 0.18 0.12 1/80 11206\n") == 1.0
    assert processor_share(f"0.20 0.18 0.12 {cpus}/80 11206\n") == 1.0
    assert processor_share(f"0.20 0.18 0.12 {4 * cpus}/80 11206\n") == 0.25


TWO_LINES = r"""
import os
os.write(1, b"first\n")
open("first", "w").close()
os.write(1, b"second\n")
open("second", "w").close()
"""


def test_another_program_gets_no_further_than_its_second_line_until_it_may(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    output = held(tmp_path / "log", ready.exists)
    with subprocess.Popen([sys.executable, "-c", TWO_LINES], stdout=output, cwd=tmp_path) as process:
        os.close(output)
        wait_until("its first line", (tmp_path / "first").exists, limit=30)
        time.sleep(0.3)
        assert not (tmp_path / "second").exists()
        ready.touch()
        process.wait(timeout=30)
    wait_until("the whole log", lambda: (tmp_path / "log").read_text() == "first\nsecond\n", limit=30)
