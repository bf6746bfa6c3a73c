"""Plots of the ratios to bare Slurm, in the paper's order. Needs matplotlib: ``pip install 'pinnace[bench]'``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.bench.measurements import Better, Group, Model
from pinnace.bench.published import PUBLISHED, System, ratio
from pinnace.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from pinnace.bench.measurements import Figure
    from pinnace.bench.results import Result

COLOURS = {Model.BARE: "#8a8f98", Model.OVER: "#1b6ca8", Model.PODS: "#2a9d8f", Model.SLURMJOB: "#e08e45"}
PUBLISHED_COLOUR = "#d9d9d9"
PUBLISHED_SYSTEMS = (System.KSI, System.HPK, System.BRIDGE)
BAR, GAP = 0.8, 0.9  # heights of a bar and of the space between figures
FAR = 8.0  # times bare: from there the scale is logarithmic
WITHOUT = "there are no plots: matplotlib is not installed"
HINT = "Install it with `pip install 'pinnace[bench]'`, then `pinnace bench report DIR` draws them."


def load_pyplot() -> ModuleType:
    """matplotlib's pyplot. BenchError if it is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - optional, and takes a second

        mpl.use("agg")
        mpl.rcParams |= {"svg.hashsalt": "pinnace", "svg.fonttype": "none"}  # the same again; text as text
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError as error:
        raise BenchError(WITHOUT, hint=HINT) from error
    return plt


def save(drawing: Drawing, directory: Path, name: str) -> list[Path]:
    """Write a drawing as PNG and as SVG."""
    directory.mkdir(exist_ok=True)
    paths = [directory / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        drawing.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def draw(results: Sequence[Result], directory: Path) -> list[Path]:
    """A PNG and an SVG for each group. BenchError without matplotlib."""
    plt = load_pyplot()
    drawn = []
    for number, group in enumerate(Group, start=1):
        chosen = [result for result in results if result.group is group]
        if not any(rows_of(chosen)):
            continue
        rows = rows_of(chosen)
        height = 1.4 + 0.26 * sum(len(bars) + 1 for _, bars in rows)
        figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
        panel(axes, rows)
        axes.set_title(f"{group.label}: ratio to bare Slurm", loc="left", fontsize=11, fontweight="bold")
        drawn += save(figure, directory, f"{number}-{group}")
        plt.close(figure)
    return drawn


class Bar:
    """One bar: its label, its ratio, the interval of that, and its colour; published ones are hatched."""

    def __init__(self, label: str, ratio: float, interval: tuple[float, float] | None, colour: str) -> None:
        self.label, self.ratio, self.interval, self.colour = label, ratio, interval, colour

    @property
    def published(self) -> bool:
        return self.colour == PUBLISHED_COLOUR


def rows_of(results: Sequence[Result]) -> list[tuple[Figure, list[Bar]]]:
    """The figures that have ratios, with their bars: ours, then the published ones."""
    found: dict[str, tuple[Figure, list[Bar]]] = {}
    for result in results:
        if result.ratio is not None:
            bar = Bar(result.model.label, result.ratio, result.interval, COLOURS[result.model])
            found.setdefault(result.figure.name, (result.figure, []))[1].append(bar)
    for figure, bars in found.values():
        if figure.published in PUBLISHED:
            bars += [Bar(f"{system} (published)", ratio(figure.published, system), None, PUBLISHED_COLOUR)
                     for system in PUBLISHED_SYSTEMS]  # fmt: skip
    return list(found.values())


def panel(axes: Axes, rows: Sequence[tuple[Figure, list[Bar]]]) -> None:
    """Horizontal bars; the line at 1 is bare Slurm on the same machine."""
    position, ticks, labels = 0.0, [], []
    highest = max(bar.ratio for _, bars in rows for bar in bars)
    if highest > FAR:
        axes.set_xscale("log")
    for figure, bars in rows:
        better = "less" if figure.better is Better.LESS else "more"
        axes.text(0, position, f"{figure.title} ({better} is better)", transform=axes.get_yaxis_transform(),
                  fontsize=8.5, fontweight="bold", va="center",
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
        position += 1
        for bar in bars:
            draw_bar(axes, bar, position)
            ticks.append(position)
            labels.append(bar.label)
            position += 1
        position += GAP - BAR
    axes.axvline(1, color="#444", linewidth=1)
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_ylim(position, -0.8)
    most = max([highest, *(bar.interval[1] for _, bars in rows for bar in bars if bar.interval)])
    axes.set_xlim(*((min(0.5, 0.8), most * 2) if highest > FAR else (0, most * 1.15)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#eee")
    axes.set_axisbelow(True)


def draw_bar(axes: Axes, bar: Bar, position: float) -> None:
    hatch, edge = ("////", "#999") if bar.published else (None, bar.colour)
    axes.barh(position, bar.ratio, height=BAR, color=bar.colour, hatch=hatch, edgecolor=edge)
    end = bar.ratio
    if bar.interval:
        axes.plot(bar.interval, [position, position], color="black", linewidth=1.2)
        end = max(end, bar.interval[1])
    beside = 1.0 if 0.8 < end < 1 else end  # not on the line of bare Slurm
    axes.annotate(f"{bar.ratio:.3g}", (beside, position), xytext=(4, 0), textcoords="offset points", fontsize=8,
                  va="center")  # fmt: skip
