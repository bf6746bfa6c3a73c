"""A timeline to look at: bars for a terminal, and a picture (SVG). Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from pinnace.timeline.marks import LOGIN
from pinnace.timeline.recorder import StepName
from pinnace.timeline.steps import StepGroup, StepPhase, TimelineStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinnace.timeline.timeline import Timeline

TITLES = {StepPhase.START: "start", StepPhase.END: "end"}
MIN_BAR = 16  # columns of a terminal
GOALS = {StepName.NODES_WAIT, StepName.FIRST_LINE}
LASTING = {StepName.AGENT, StepName.WORKLOAD, "watch-head", "bootstrap", "metrics-api"}
NAME_LIMIT = 44  # characters of a step's name that are shown
COLOURS = {
    StepGroup.COMMAND: "#7570b3",
    StepGroup.SLURM: "#999999",
    StepGroup.NODE: "#1b9e77",
    StepGroup.CONTROL_PLANE: "#d95f02",
    StepGroup.POD: "#e7298a",
}


@dataclass(frozen=True, kw_only=True)
class Section:
    """The steps of one phase, by where they happened: the login node first, then nodes in the order of their begin."""

    title: str
    begin: float
    end: float
    rows: tuple[tuple[str, tuple[TimelineStep, ...]], ...]

    @property
    def length(self) -> float:
        return max(self.end - self.begin, 0.001)


def sections(timeline: Timeline) -> Iterator[Section]:
    for phase, title in TITLES.items():
        steps = timeline.of_phase(phase)
        if not steps:
            continue
        begin = min(step.begin for step in steps)
        places = list(dict.fromkeys(step.where for step in steps))
        places.sort(key=lambda where: where != LOGIN)
        rows = tuple((where, tuple(step for step in steps if step.where == where)) for where in places)
        yield Section(title=title, begin=begin, end=_end(steps, phase), rows=rows)


def _end(steps: Sequence[TimelineStep], phase: StepPhase) -> float:
    """Where the bars of a phase end: not with what begins in the start and goes on for as long as the cluster does."""
    goals = [step for step in steps if step.name in GOALS and step.end is not None]
    if phase is StepPhase.START and goals:
        return max(step.last for step in steps if step in goals or step.group is StepGroup.POD)
    return max((step.last for step in steps if step.name not in LASTING), default=steps[0].last)


def summary(timeline: Timeline) -> list[str]:
    """What a user asks first: how long it took, and how much of that was Slurm's."""
    lines = []
    ready, line = timeline.at(StepName.NODES_WAIT), timeline.at(StepName.FIRST_LINE)
    if ready is not None:
        lines.append(f"all nodes ready after {ready:.2f} s")
    if line is not None:
        lines.append(f"first line of the workload after {line:.2f} s")
    if timeline.slurm:
        lines.append(f"Slurm's part of that {timeline.slurm:.2f} s (queue and srun)")
    if ready is None and any(step.where == LOGIN for step in timeline.steps):
        lines.insert(0, "not ready")
    return lines


def as_text(timeline: Timeline, width: int = 100) -> str:
    """Bars for a terminal of so many columns. Times are seconds after the beginning of each section."""
    lines = [": ".join(filter(None, (timeline.cluster, "; ".join(summary(timeline)))))]
    for section in sections(timeline):
        names = min(max(len(step.name) for _, steps in section.rows for step in steps) + 3, NAME_LIMIT)
        bar = max(width - names - 25, MIN_BAR)
        lines += ["", f"{section.title:{names}}{'BEGIN':>8}{'END':>8}{'TOOK':>8}"]
        for where, steps in section.rows:
            lines.append(where)
            lines += [_text_row(step, section, names, bar) for step in steps]
    return "\n".join(lines)


def _text_row(step: TimelineStep, section: Section, names: int, bar: int) -> str:
    name = f"  {step.name}"
    if len(name) > names - 1:
        name = f"{name[: names - 2]}…"
    begin = step.begin - section.begin
    end = f"{step.end - section.begin:8.2f}" if step.end is not None else " " * 8
    took = f"{step.end - step.begin:8.2f}" if step.end is not None and step.end > step.begin else " " * 8
    return f"{name:{names}}{begin:8.2f}{end}{took} {_bar(step, section, bar)}".rstrip()


def _bar(step: TimelineStep, section: Section, width: int) -> str:
    scale = width / section.length
    first = min(int((step.begin - section.begin) * scale), width - 1)
    if step.end is None or step.end == step.begin:
        return " " * first + "·"
    last = min(math.ceil((step.end - section.begin) * scale), width)
    return " " * first + "█" * max(last - first, 1)


ROW, LEFT, CHART, RIGHT, TOP = 16, 300, 800, 70, 60  # pixels


def as_svg(timeline: Timeline) -> str:
    """A picture that needs nothing else: no script, no font, no file."""
    body: list[str] = []
    y = TOP
    for section in sections(timeline):
        y = _svg_section(body, section, y) + 2 * ROW
    width = LEFT + CHART + RIGHT
    heading = [
        _svg_text(10, 22, f"pinnace: {timeline.cluster}", size=16),
        _svg_text(10, 40, "; ".join(summary(timeline))),
        *_svg_legend(width),
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{width}" height="{y}" fill="white"/>',
            *heading,
            *body,
            "</svg>",
            "",
        ]
    )


def _svg_text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )


def _svg_legend(width: int) -> Iterator[str]:
    x = width - 480
    for group, colour in COLOURS.items():
        yield f'<rect x="{x}" y="12" width="11" height="11" fill="{colour}"/>'
        yield _svg_text(x + 15, 22, group)
        x += 95


def _svg_section(body: list[str], section: Section, top: int) -> int:
    """Append one section; gives where it ends."""
    rows = sum(len(steps) + 1 for _, steps in section.rows)
    bottom = top + (rows + 1) * ROW
    body.append(_svg_text(10, top + 11, section.title, size=13))
    step = tick(section.length)
    for number in range(int(section.length / step) + 1):
        x = LEFT + number * step / section.length * CHART
        body.append(f'<line x1="{x:.1f}" y1="{top + 14}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        body.append(_svg_text(x, top + 11, f"{number * step:g} s", anchor="middle", colour="#666"))
    y = top + ROW
    for where, steps in section.rows:
        body.append(_svg_text(10, y + 12, where, size=12))
        y += ROW
        for row in steps:
            body.extend(_svg_row(row, section, y))
            y += ROW
    return bottom


def _svg_row(step: TimelineStep, section: Section, y: int) -> Iterator[str]:
    scale, colour = CHART / section.length, COLOURS[step.group]
    x = LEFT + min(step.begin - section.begin, section.length) * scale
    took = "" if step.end is None or step.end == step.begin else f"{step.end - step.begin:.2f} s"
    yield _svg_text(24, y + 12, _shortened(step.name))
    if took and step.end is not None:
        length = max((min(step.end, section.end) - step.begin) * scale, 1.5)
        yield f'<rect x="{x:.1f}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>'
        yield _svg_text(x + length + 4, y + 12, took, colour="#666")
    else:
        yield f'<circle cx="{x:.1f}" cy="{y + ROW / 2}" r="3" fill="{colour}"/>'


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_LIMIT else f"{name[: NAME_LIMIT - 1]}…"


def tick(length: float) -> float:
    """The distance of an axis's ticks: about ten of them, at 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(length / 10))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 10 >= length)
