"""Logs that are followed over connections that break, from a kubelet that gives its present file alone."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

import pytest

from pinnace.kube.client import Api
from pinnace.kube.logs import ContainerLog, parse

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kubelet(Api):
    """Gives the lines of ``file`` that are not older than asked for; breaks off after ``breaks`` of them."""

    def __init__(self) -> None:
        self.file: list[str] = []
        self.breaks: int | None = None
        self.asked: list[str] = []

    def stream(self, path: str, *, idle: float | None = None) -> Iterator[str]:
        del idle
        assert "/namespaces/n/pods/p/log?container=c&follow=true&timestamps=true" in path
        self.asked.append(path)
        since = re.search(r"&sinceTime=(\S{19}Z)$", path)
        begin = dt.datetime.fromisoformat(since[1]) if since else dt.datetime.min.replace(tzinfo=dt.UTC)
        found = [line for line in self.file if parse(line)[0] is None or moment(line) >= begin]
        yield from found[: self.breaks]
        if self.breaks is not None:
            raise ConnectionResetError


def moment(line: str) -> dt.datetime:
    return dt.datetime.fromisoformat(line.partition(" ")[0])


def line(seconds: float, text: str) -> str:
    """A line that was written so many seconds after noon."""
    return f"2026-11-17T12:{int(seconds) // 60:02d}:{seconds % 60:012.9f}Z {text}"


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


@pytest.fixture
def log() -> ContainerLog:
    return ContainerLog("n", "p", "c")


def each(log: ContainerLog, kubelet: Kubelet, breaks: int | None = None) -> list[str]:
    """What is given over one connection."""
    found, kubelet.breaks = list[str](), breaks
    try:
        for text in log.lines(kubelet):
            found.append(text)
    except ConnectionResetError:
        assert breaks is not None
    return found


def test_the_stamp_is_not_given(log: ContainerLog, kubelet: Kubelet) -> None:
    kubelet.file = [line(1, "first"), line(2, ""), line(3, "2026-11-17T12:00:00Z its own"), line(4, " two  spaces ")]
    assert each(log, kubelet) == ["first", "", "2026-11-17T12:00:00Z its own", " two  spaces "]


@pytest.mark.parametrize("breaks", range(6))
def test_each_line_is_given_once(log: ContainerLog, kubelet: Kubelet, breaks: int) -> None:
    kubelet.file = [line(1, "a"), line(2.5, "b"), line(2.5, "b"), line(2.5, "c"), line(9, "d")]
    assert each(log, kubelet, breaks) + each(log, kubelet) == ["a", "b", "b", "c", "d"]
    kubelet.file += [line(9, "d"), line(9.000000001, "d")]
    assert each(log, kubelet) == ["d", "d"]
    assert each(log, kubelet) == []


def test_only_the_last_seconds_are_asked_for_again(log: ContainerLog, kubelet: Kubelet) -> None:
    kubelet.file = [line(seconds, str(seconds)) for seconds in range(100)]
    assert len(each(log, kubelet, 60)) == 60
    assert each(log, kubelet)[0] == "60"
    assert "sinceTime" not in kubelet.asked[0]
    assert kubelet.asked[1].endswith("&sinceTime=2026-11-17T12:00:57Z")


def test_no_line_of_a_new_file_is_lost(log: ContainerLog, kubelet: Kubelet) -> None:
    """The kubelet has rotated the log: what was given is not in the file any more."""
    kubelet.file = [line(1 + count / 10, f"old {count}") for count in range(9)]
    assert len(each(log, kubelet, 9)) == 9
    kubelet.file = [kubelet.file[-1], *(line(2 + count / 10, f"new {count}") for count in range(3))]
    assert each(log, kubelet) == ["new 0", "new 1", "new 2"]


def test_lines_of_two_streams_may_be_out_of_order(log: ContainerLog, kubelet: Kubelet) -> None:
    kubelet.file = [line(5.1, "error"), line(4.999999, "output"), line(5.05, "more")]
    assert each(log, kubelet, 1) + each(log, kubelet, 2) + each(log, kubelet) == ["error", "output", "more"]


def test_time_zones_of_nodes_may_change(log: ContainerLog, kubelet: Kubelet) -> None:
    kubelet.file = ["2026-10-25T02:59:59.9+02:00 summer", "2026-10-25T02:00:00.1+01:00 winter"]
    assert each(log, kubelet, 1) + each(log, kubelet) == ["summer", "winter"]


def test_lines_without_a_stamp_are_given_as_they_are(log: ContainerLog, kubelet: Kubelet) -> None:
    kubelet.file = ["unable to retrieve container logs", "2026-99-17T12:00:00Z no time"]
    assert each(log, kubelet, 1) + each(log, kubelet) == kubelet.file
    assert each(log, kubelet) == []


def test_the_rest_of_a_long_line_is_not_given_again(log: ContainerLog, kubelet: Kubelet) -> None:
    """Its first part is too old to be asked for, and it alone has a stamp."""
    kubelet.file = [line(1, "a long line"), line(3, "last")]
    assert len(each(log, kubelet, 2)) == 2
    kubelet.file = [" line", line(3, "last"), line(4, "new")]
    assert each(log, kubelet) == ["new"]
