"""Bars for a terminal, and the picture."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from pinnace.timeline.marks import LOGIN
from pinnace.timeline.recorder import StepName
from pinnace.timeline.rendering import as_svg, as_text, tick
from pinnace.timeline.steps import StepGroup, TimelineStep
from pinnace.timeline.timeline import Timeline, with_phases


def step(where: str, name: str, begin: float, end: float | None, group: StepGroup = StepGroup.NODE) -> TimelineStep:
    return TimelineStep(where=where, name=name, group=group, begin=begin, end=end)


TIMELINE = Timeline(
    cluster="default",
    steps=with_phases(
        [
            step("n1", "mounts", 1002.0, 1003.0),
            step("n1", "links", 1003.0, None),
            step("n2", "<mounts> & more", 1002.5, 1003.0),
            step(LOGIN, StepName.NODES_WAIT, 1000.0, 1004.0, StepGroup.COMMAND),
            step("n1", StepName.NODE_END, 2000.0, None),
            step("n1", "drain", 2000.0, 2001.0),
        ]
    ),
)


def test_text() -> None:
    assert as_text(TIMELINE, width=66).splitlines() == [
        "default: all nodes ready after 4.00 s",
        "",
        "start                   BEGIN     END    TOOK",
        "login",
        "  wait for the nodes     0.00    4.00    4.00 ████████████████████",
        "n1",
        "  mounts                 2.00    3.00    1.00           █████",
        "  links                  3.00                                ·",
        "n2",
        "  <mounts> & more        2.50    3.00    0.50             ███",
        "",
        "end                  BEGIN     END    TOOK",
        "n1",
        "  end of the node     0.00                 ·",
        "  drain               0.00    1.00    1.00 ███████████████████████",
    ]


def test_what_lasts_as_long_as_the_cluster_does_not_shrink_the_rest() -> None:
    steps = [
        step("n1", StepName.AGENT, 1000.0, 9000.0),
        step("n1", "mounts", 1001.0, 1002.0),
        step(LOGIN, StepName.NODES_WAIT, 1000.0, 1004.0, StepGroup.COMMAND),
    ]
    rows = as_text(Timeline(cluster="c", steps=with_phases(steps)), width=66).splitlines()
    assert "  agent                  0.00 8000.00 8000.00 ████████████████████" in rows
    assert "  mounts                 1.00    2.00    1.00      █████" in rows
    node = Timeline(cluster="c", steps=with_phases(steps)).only("n1")
    assert "  mounts     1.00    2.00    1.00                 ████████████████" in as_text(node, width=66).splitlines()


def test_names_that_are_too_long_are_cut() -> None:
    long = Timeline(cluster="c", steps=with_phases([step("n1", "x" * 100, 1.0, 2.0)]))
    rows = as_text(long, width=80).splitlines()
    assert all(len(row) <= 90 for row in rows)
    assert "x…" in rows[-1]


def test_nothing_to_show() -> None:
    empty = Timeline(cluster="c", steps=())
    assert as_text(empty) == "c"
    failed = Timeline(cluster="c", steps=with_phases([step(LOGIN, StepName.SUBMISSION, 1.0, 2.0)]))
    assert as_text(failed).startswith("c: not ready\n")
    ET.fromstring(as_svg(empty))  # noqa: S314 - our own


def test_the_picture_is_xml_with_every_step() -> None:
    root = ET.fromstring(as_svg(TIMELINE))  # noqa: S314 - our own
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("login", "n1", "n2", "mounts", "links", "<mounts> & more", "drain", "1.00 s", "start", "end"):
        assert name in texts
    bars = [element for element in root.iter("{http://www.w3.org/2000/svg}rect") if element.get("height") == "10"]
    assert len(bars) == 4
    by_length = sorted(float(bar.get("width", "0")) for bar in bars)
    assert by_length == [100.0, 200.0, 800.0, 800.0]


@pytest.mark.parametrize(("length", "distance"), [(4.0, 0.5), (10.0, 1.0), (0.9, 0.1), (35.0, 5.0), (0.001, 0.0001)])
def test_ticks(length: float, distance: float) -> None:
    assert tick(length) == pytest.approx(distance)
