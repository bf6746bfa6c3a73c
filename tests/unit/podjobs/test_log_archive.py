"""Logs of nodes that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.podjobs.log_archive import Line, find, instant, parse_line, select

if TYPE_CHECKING:
    from pathlib import Path

RAW = b"""2026-01-01T00:00:00.123456789Z stdout F one
2026-01-01T00:00:01.5Z stderr F two
2026-01-01T00:00:02Z stdout P three-
2026-01-01T00:00:02.1Z stdout F and-four
""".splitlines(keepends=True)


def lines() -> list[Line]:
    return [line for line in map(parse_line, RAW) if line]


def test_the_runtimes_format() -> None:
    assert lines()[0] == Line("2026-01-01T00:00:00.123456789Z", "stdout", True, b"one")
    assert parse_line(b"nonsense") is None
    assert b"".join(select(lines())) == b"one\ntwo\nthree-and-four\n"


def test_what_kubectl_can_ask_for() -> None:
    assert b"".join(select(lines(), tail=1)) == b"three-and-four\n"
    assert b"".join(select(lines(), tail=0)) == b""
    assert b"".join(select(lines(), since=instant("2026-01-01T00:00:01Z"))) == b"two\nthree-and-four\n"
    assert b"".join(select(lines(), limit=6)) == b"one\ntw"
    assert b"".join(select(lines(), stream="stderr")) == b"two\n"
    assert next(iter(select(lines(), timestamps=True))) == b"2026-01-01T00:00:00.123456789Z one\n"


def test_the_right_file_is_found(tmp_path: Path) -> None:
    place = tmp_path / "job-7" / "default_pod_uid" / "main"
    place.mkdir(parents=True)
    for run in (0, 1, 10):
        (place / f"{run}.log").touch()
    assert find(tmp_path, "default", "pod", "main", previous=False) == place / "10.log"
    assert find(tmp_path, "default", "pod", "main", previous=True) == place / "1.log"
    assert find(tmp_path, "default", "other", "main", previous=False) is None
    assert find(tmp_path, "..", "pod", "main", previous=False) is None
