"""Commands of a run: what they print, and that those which take too long are ended in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinnace.bench import allocation
from pinnace.bench.allocation import execute
from pinnace.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path

# As srun does with its job, this writes that it was told to end.
SRUN = "trap 'kill $!; echo ended > \"$1\"; exit 1' TERM; sleep 60 & {}; wait"


def waiting(marker: Path, first: str = ":") -> list[str]:
    return ["sh", "-c", SRUN.format(first), "sh", str(marker)]


def test_a_command_has_its_input_and_gives_its_output() -> None:
    assert execute(["cat"], limit=30, stdin="words\n") == "words\n"
    assert execute(["cat"], limit=30) == ""
    assert execute(["printf", r"a\377"], limit=30) == "a�"


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(BenchError, match="exit code 3: no such host / but a line"):
        execute(["sh", "-c", "echo no such host >&2; echo but a line; exit 3"], limit=30)
    with pytest.raises(BenchError, match="there is no `no-such-program` here"):
        execute(["no-such-program"], limit=30)


def test_what_takes_too_long_is_told_to_end(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no result within 2 s"):
        execute(waiting(tmp_path / "marker"), limit=2)
    assert (tmp_path / "marker").read_text() == "ended\n"


def test_ctrl_c_tells_a_command_to_end(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        # not while Python still forks: what comes then, it drops
        execute(waiting(tmp_path / "marker", "sleep 0.5; kill -INT $PPID"), limit=30)
    assert (tmp_path / "marker").read_text() == "ended\n"


def test_what_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "END_LIMIT", 0.2)
    with pytest.raises(BenchError, match="no result within 1 s"):
        execute(["sh", "-c", "trap '' TERM; exec sleep 20"], limit=1)
