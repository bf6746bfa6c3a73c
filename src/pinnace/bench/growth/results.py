"""What was measured at each size, as a table, as JSON, and as series that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.bench import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pinnace.bench.growth.load import LoadSample

__all__ = ["COLUMNS", "OBJECTIVES", "Size", "as_json", "cells", "figures", "markdown", "missed", "series", "sizes_from",
           "text"]  # fmt: skip

# Kubernetes' own, https://github.com/kubernetes/community/blob/main/sig-scalability/slos/slos.md: seconds, at p99.
OBJECTIVES = {"pod_start_p99": 5.0, "api_single_p99": 1.0, "api_list_p99": 30.0}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A figure in the table."""

    title: str
    digits: int
    unit: str = ""

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


COLUMNS = {
    "nodes": Column(title="nodes", digits=0),
    "pods": Column(title="pods", digits=0),
    "nodes_seconds": Column(title="nodes ready", unit="s", digits=1),
    "pods_per_second": Column(title="pods per second", digits=0),
    "pod_start_p50": Column(title="pod start p50", unit="s", digits=2),
    "pod_start_p99": Column(title="pod start p99", unit="s", digits=2),
    "api_single_p99": Column(title="API p99, one object", unit="s", digits=3),
    "api_list_p99": Column(title="API p99, lists", unit="s", digits=3),
    "apiserver_mib": Column(title="API server", unit="MiB", digits=0),
    "apiserver_cpu_ms_per_pod": Column(title="API server", unit="CPU ms per pod", digits=0),
    "cpu_ms_per_pod": Column(title="control plane", unit="CPU ms per pod", digits=0),
    "etcd_mib": Column(title="etcd", unit="MiB", digits=0),
    "controller_manager_mib": Column(title="controller-manager", unit="MiB", digits=0),
    "scheduler_mib": Column(title="scheduler", unit="MiB", digits=0),
    "all_mib": Column(title="all, idle", unit="MiB", digits=0),
    "further_node_mib": Column(title="each further node", unit="MiB", digits=0),
    "head_threads": Column(title="threads of the head's links", digits=0),
    "head_links": Column(title="the head's links", digits=0),
    "node_threads": Column(title="threads of a node's links", digits=0),
    "node_links": Column(title="a node's links", digits=0),
    "down_seconds": Column(title="down", unit="s", digits=1),
}
LAST = "objectives"
LEFT = {LAST}  # columns of words


@dataclass(frozen=True, kw_only=True)
class Size:
    """A cluster of one size: the figures by the names of COLUMNS, and all that they were taken from."""

    figures: Mapping[str, float | None]
    raw: Mapping[str, Any]


def figures(sample: LoadSample) -> dict[str, float | None]:
    """What a client of the API can tell of a cluster, as columns."""
    pods = sample.new_pods + sample.probe.pods
    spent = sample.apiserver_cpu_seconds
    return {
        "nodes": sample.nodes,
        "pods": sample.pods,
        "nodes_seconds": sample.nodes_seconds,
        "pods_per_second": sample.pods_per_second,
        "pod_start_p50": sample.probe.p50,
        "pod_start_p99": sample.probe.p99,
        "api_single_p99": sample.api_p99["single"],
        "api_list_p99": sample.api_p99["list"],
        "apiserver_mib": sample.apiserver_mib,
        "apiserver_cpu_ms_per_pod": None if spent is None else spent * 1000 / pods,
    }


def missed(figures: Mapping[str, float | None]) -> list[str]:
    """The objectives that were not met."""
    return [name for name, limit in OBJECTIVES.items() if (figures.get(name) or 0.0) > limit]


def cells(sizes: Sequence[Size]) -> list[tuple[str, ...]]:
    """The header, and a row for each size; columns that nobody measured are left out."""
    shown = [name for name in COLUMNS if any(size.figures.get(name) is not None for size in sizes)]
    rows = []
    for size in sizes:
        found = {name: size.figures.get(name) for name in shown}
        values = ["" if value is None else f"{value:,.{COLUMNS[name].digits}f}" for name, value in found.items()]
        rows.append((*values, _judgement(size.figures)))
    return [(*(COLUMNS[name].heading for name in shown), LAST), *rows]


def _judgement(figures: Mapping[str, float | None]) -> str:
    names = [COLUMNS[name].title for name in missed(figures)]
    return f"missed: {'; '.join(names)}" if names else "met"


def text(sizes: Sequence[Size]) -> str:
    return table.text(cells(sizes), LEFT)


def markdown(sizes: Sequence[Size]) -> str:
    return table.markdown(cells(sizes), LEFT)


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


def sizes_from(document: Mapping[str, Any], part: str) -> list[Size]:
    """The sizes of a part, out of what ``as_json`` has made."""
    return [
        Size(figures={name: entry[name] for name in COLUMNS if name in entry}, raw=entry["raw"])
        for entry in document["parts"][part]["sizes"]
    ]
