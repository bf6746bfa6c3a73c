"""The plot of a cluster's growth: pods per second, latencies and memory over its size. Needs matplotlib, as others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.bench.growth.results import COLUMNS, OBJECTIVES, series
from pinnace.bench.plots import load_pyplot, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from pinnace.bench.growth.results import Size

__all__ = ["NAME", "draw"]

NAME = "7-growth"  # after the groups of a run
COLOURS = ("#1b6ca8", "#e08e45")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Figures with one scale. ``objective`` names that of the first of them, if it has one."""

    title: str
    figures: tuple[str, ...]
    objective: str = ""


PANELS = (
    Panel(title="Pods per second, until all run", figures=("pods_per_second",)),
    Panel(title="Start of a pod, p99 (s)", figures=("pod_start_p99",), objective="objective"),
    Panel(
        title="Requests to the API, p99 (s)",
        figures=("api_single_p99", "api_list_p99"),
        objective="objective for one object",
    ),
    Panel(title="Memory of the API server (MiB)", figures=("apiserver_mib",)),
)


def draw(sizes: Sequence[Size], directory: Path) -> list[Path]:
    """A PNG and an SVG. BenchError without matplotlib."""
    plt = load_pyplot()
    figure, grid = plt.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    for axes, panel in zip(grid.flat, PANELS, strict=True):
        draw_panel(axes, panel, sizes)
    figure.suptitle("Growth: simulated nodes on a control plane in a job", x=0.01, ha="left", fontsize=11,
                    fontweight="bold")  # fmt: skip
    drawn = save(figure, directory, NAME)
    plt.close(figure)
    return drawn


def draw_panel(axes: Axes, panel: Panel, sizes: Sequence[Size]) -> None:
    """Lines over the number of pods, with a tick for each size, and one for the objective."""
    drawn = series(sizes, over="pods")
    highest = 0.0
    for name, colour in zip(panel.figures, COLOURS, strict=False):
        points = drawn.get(name, [])
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", color=colour, label=COLUMNS[name].title)
        highest = max([highest, *(y for _, y in points)])
    if panel.objective:
        limit = OBJECTIVES[panel.figures[0]]
        axes.axhline(limit, color="#b3261e", linewidth=1, linestyle="--", label=f"{panel.objective}: {limit:g} s")
        highest = max(highest, limit)
    if len(axes.lines) > 1:
        axes.legend(fontsize=8, frameon=False)
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_xscale("log")
    at = [(size.figures["pods"] or 0.0, size.figures["nodes"] or 0.0) for size in sizes]
    axes.set_xticks(
        [pods for pods, _ in at], [f"{pods:,.0f} pods\n{nodes:,.0f} nodes" for pods, nodes in at], fontsize=8
    )
    axes.minorticks_off()
    axes.set_ylim(0, highest * 1.15 or 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eee")
    axes.set_axisbelow(True)
