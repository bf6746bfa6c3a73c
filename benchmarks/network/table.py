"""The results as a table, for the terminal or as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.network.measurements import NetworkPath, Unit
from pinnace.bench import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.network.results import Figures, Result

__all__ = ["cells", "markdown", "text"]

HEADER = ("measurement", "path", "median", "min..max", "unit", "p99", "ratio", "goal", "", "CPU", "of the machine")
LEFT = {"measurement", "path", "unit", "", "of the machine"}  # columns of words; figures are on the right


def cells(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The header, and a row for each path of each measurement."""
    rows = [row(result, path, result.figures(path)) for result in results for path in result.samples]
    return [HEADER, *rows]


def row(result: Result, path: NetworkPath, figures: Figures) -> tuple[str, ...]:
    unit = result.measurement.unit
    digits = 2 if unit is Unit.THROUGHPUT else 0
    bare = path is NetworkPath.BARE
    return (
        result.measurement.name if bare else "",
        path.value,
        f"{figures.median:.{digits}f}",
        f"{figures.low:.{digits}f}..{figures.high:.{digits}f}",
        unit.value,
        "" if figures.p99 is None else f"{figures.p99:.0f}",
        "" if bare else f"{figures.ratio:.2f}",
        "" if figures.goal is None else f"{'≥' if unit is Unit.THROUGHPUT else '≤'} {figures.goal:.2f}",
        {None: "", True: "ok", False: "missed"}[figures.met],
        f"{figures.cpu:.2f}",
        unit.cpu_unit,
    )


def text(results: Sequence[Result]) -> str:
    return table.text(cells(results), LEFT)


def markdown(results: Sequence[Result]) -> str:
    return table.markdown(cells(results), LEFT)
