"""The ratios to the bare machine as bars, in SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks.network.measurements import NetworkPath, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.network.results import Result

__all__ = ["svg"]

WIDTH, LABELS, MARGIN = 920, 320, 70  # of the picture; of the names on the left; of the figures on the right
BAR, ROW, HEAD = 11, 34, 46  # heights, in pixels
MOST_TICKS = 8
COLOURS = {NetworkPath.NATIVE: "#1b6ca8", NetworkPath.GENERAL: "#e08e45"}
TITLES = {
    Unit.THROUGHPUT: "Throughput as a share of the bare machine's: more is better",
    Unit.TIME: "Time as a multiple of the bare machine's: less is better",
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Ratios from 0 to ``end``, as positions in the picture."""

    end: float

    def __call__(self, ratio: float) -> float:
        return LABELS + (WIDTH - LABELS - MARGIN) * min(ratio, self.end) / self.end

    @property
    def ticks(self) -> list[float]:
        step = 0.25
        while self.end / step > MOST_TICKS:
            step *= 2
        return [number * step for number in range(int(self.end / step) + 1)]


def svg(results: Sequence[Result]) -> str:
    """Two panels, throughput and times, each with its own scale. The whiskers are the lowest and the highest round."""
    lines, top = list(legend()), HEAD
    for unit in Unit:
        chosen = [result for result in results if result.measurement.unit is unit]
        if chosen:
            lines += panel(chosen, TITLES[unit], top)
            top += HEAD + ROW * len(chosen) + HEAD
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="white"/>', *lines, "</svg>", ""])


def legend() -> Iterator[str]:
    for number, (path, colour) in enumerate(COLOURS.items()):
        left = LABELS + 110 * number
        yield f'<rect x="{left}" y="14" width="{BAR}" height="{BAR}" fill="{colour}"/>'
        yield label(f"{path} path", left + 18, 24)
    left = LABELS + 110 * len(COLOURS)
    yield vertical(left, 12, 28, "#c00", 2)
    yield label("goal", left + 8, 24)


def panel(results: Sequence[Result], title: str, top: int) -> Iterator[str]:
    scale = Scale(end=largest(results))
    begin, end = top + HEAD, top + HEAD + ROW * len(results)
    yield label(title, LABELS, top + 20, weight="bold")
    for tick in scale.ticks:
        yield vertical(scale(tick), begin - 4, end, "#ddd", 1)
        yield label(f"{tick:g}", scale(tick), end + 16, anchor="middle")
    yield vertical(scale(1), begin - 4, end, "#888", 1)
    for number, result in enumerate(results):
        yield from bars(result, scale, begin + ROW * number)


def largest(results: Sequence[Result]) -> float:
    """The end of the scale: room for all whiskers, goals, and the bare machine's 1."""
    ratios = [high for result in results for path in COLOURS for high in spread(result, path)]
    goals = [goal for result in results for goal in result.measurement.goals.values()]
    return max(1.0, *ratios, *goals) * 1.05


def spread(result: Result, path: NetworkPath) -> tuple[float, float]:
    """The lowest and the highest round, as ratios to the bare machine's median."""
    figures = result.figures(path)
    bare = result.figures(NetworkPath.BARE).median
    return figures.low / bare, figures.high / bare


def bars(result: Result, scale: Scale, top: int) -> Iterator[str]:
    yield label(result.measurement.name, LABELS - 10, top + 18, anchor="end")
    for number, (path, colour) in enumerate(COLOURS.items()):
        y = top + 4 + (BAR + 2) * number
        figures = result.figures(path)
        low, high = spread(result, path)
        middle = y + BAR / 2
        yield f'<rect x="{LABELS}" y="{y}" width="{scale(figures.ratio) - LABELS:.1f}" height="{BAR}" fill="{colour}"/>'
        yield f'<path d="M{scale(low):.1f} {middle}H{scale(high):.1f}" stroke="black"/>'
        if figures.goal is not None:
            yield vertical(scale(figures.goal), y - 1, y + BAR + 1, "#c00", 2)
        yield label(f"{figures.ratio:.2f}", WIDTH - MARGIN + 10, y + 10)


def vertical(x: float, top: float, bottom: float, colour: str, width: int) -> str:
    return f'<path d="M{x:.1f} {top}V{bottom}" stroke="{colour}" stroke-width="{width}"/>'


def label(text: str, x: float, y: float, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
