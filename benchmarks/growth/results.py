"""What was measured at each size, as a table, as JSON, and as series that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["OBJECTIVES", "Size", "as_json", "markdown", "series", "text"]

# Kubernetes' own, https://github.com/kubernetes/community/blob/main/sig-scalability/slos/slos.md: seconds, at p99.
OBJECTIVES = {"pod_start_p99": 5.0, "api_single_p99": 1.0, "api_list_p99": 30.0}

COLUMNS = {
    "nodes": "{:.0f}",
    "pods": "{:.0f}",
    "nodes_seconds": "{:.1f}",
    "pods_per_second": "{:.0f}",
    "cpu_ms_per_pod": "{:.0f}",
    "pod_start_p50": "{:.2f}",
    "pod_start_p99": "{:.2f}",
    "api_single_p99": "{:.3f}",
    "api_list_p99": "{:.3f}",
    "apiserver_mib": "{:.0f}",
    "etcd_mib": "{:.0f}",
    "controller_manager_mib": "{:.0f}",
    "scheduler_mib": "{:.0f}",
    "all_mib": "{:.0f}",
    "further_node_mib": "{:.0f}",
    "head_threads": "{:.0f}",
    "head_links": "{:.0f}",
    "node_threads": "{:.0f}",
    "node_links": "{:.0f}",
    "down_seconds": "{:.1f}",
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """A cluster of one size: the figures by the names of COLUMNS, and all that they were taken from."""

    figures: Mapping[str, float | None]
    raw: Mapping[str, Any]


def missed(figures: Mapping[str, float | None]) -> list[str]:
    """The objectives that were not met."""
    return [name for name, limit in OBJECTIVES.items() if (figures.get(name) or 0.0) > limit]


def cells(sizes: Sequence[Size]) -> list[tuple[str, ...]]:
    """The header, and a row for each size; columns that nobody measured are left out."""
    shown = [name for name in COLUMNS if any(size.figures.get(name) is not None for size in sizes)]
    rows = []
    for size in sizes:
        found = {name: size.figures.get(name) for name in shown}
        values = ["" if value is None else COLUMNS[name].format(value) for name, value in found.items()]
        rows.append((*values, ", ".join(missed(size.figures)) or "met"))
    return [(*(name.replace("_", " ") for name in shown), "objectives"), *rows]


def text(sizes: Sequence[Size]) -> str:
    rows = cells(sizes)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in rows
    )


def markdown(sizes: Sequence[Size]) -> str:
    header, *rows = cells(sizes)
    rule = tuple("---:" for _ in header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


def series(sizes: Sequence[Size], *, over: str) -> dict[str, list[tuple[float, float]]]:
    """Each figure over the number of nodes or of pods, ready to be drawn."""
    return {
        name: [
            (x, y)
            for size in sizes
            if (x := size.figures.get(over)) is not None and (y := size.figures.get(name)) is not None
        ]
        for name in COLUMNS
        if name != over and any(size.figures.get(name) is not None for size in sizes)
    }


def as_json(parts: Mapping[str, Sequence[Size]], **conditions: Any) -> dict[str, Any]:
    """Everything that was measured, and under which conditions."""
    return {
        **conditions,
        "objectives": OBJECTIVES,
        "parts": {
            name: {
                "series": {over: series(sizes, over=over) for over in ("nodes", "pods")},
                "sizes": [dict(size.figures) | {"missed": missed(size.figures), "raw": size.raw} for size in sizes],
            }
            for name, sizes in parts.items()
        },
    }
