"""Results as tables: for the terminal, and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.bench.measurements import Model
from pinnace.bench.published import PUBLISHED, System, ratio

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pinnace.bench.results import Result

    Rows = Sequence[Sequence[str]]

HEADER = ("measurement", "model", "median", "quartiles", "unit", "n", "of bare", "95 %", "published, of bare")
LEFT = {"measurement", "model", "unit", "published, of bare"}  # columns of words; figures are on the right


def text(rows: Rows, left: Collection[str]) -> str:
    """Rows below their header, aligned: columns of words on the left, figures on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(_padded(rows[0], line, widths, left)).rstrip() for line in rows)


def _padded(header: Sequence[str], line: Sequence[str], widths: Sequence[int], left: Collection[str]) -> list[str]:
    columns = zip(header, line, widths, strict=True)
    return [cell.ljust(width) if name in left else cell.rjust(width) for name, cell, width in columns]


def markdown(rows: Rows, left: Collection[str]) -> str:
    header, *others = rows
    rule = tuple("---" if name in left else "---:" for name in header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *others))


def number(value: float) -> str:
    """With as many digits as matter."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def cells(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The header, and a row for each model of each figure."""
    rows: list[tuple[str, ...]] = [HEADER]
    shown = ""
    for result in results:
        title = f"{result.group}: {result.figure.title}"
        rows.append(row(result, title if title != shown else ""))
        shown = title
    return rows


def row(result: Result, title: str) -> tuple[str, ...]:
    about = result.summary
    return (
        title,
        result.model.label,
        number(about.median),
        f"{number(about.low)}..{number(about.high)}",
        result.figure.unit,
        str(about.count),
        "" if result.ratio is None else f"{result.ratio:.3f}",
        f"{result.interval[0]:.3f}..{result.interval[1]:.3f}" if result.interval else "",
        published(result),
    )


def published(result: Result) -> str:
    """The published systems' ratios to their own bare Slurm, in the row of the model that they resemble."""
    name = result.figure.published
    if name not in PUBLISHED or result.model not in LIKE:
        return ""
    return ", ".join(f"{system} {ratio(name, system):.3g}" for system in LIKE[result.model])


LIKE = {Model.OVER: (System.KSI,), Model.PODS: (System.HPK,), Model.SLURMJOB: (System.BRIDGE,)}
