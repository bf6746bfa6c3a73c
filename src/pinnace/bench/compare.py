"""What changed between two runs, and whether it is more than noise.

Noise is what a Mann-Whitney U test cannot tell from no difference at all (p >= 0.01): with some fifty comparisons in a
run, 0.05 would call two of them changes by mere chance. A smaller difference than 1 % is not called a change either.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any

from pinnace.bench.measurements import FIGURES, TASK_OF_FIGURE, Better, Model
from pinnace.bench.results import values_of
from pinnace.bench.statistics import mann_whitney, ratio_interval
from pinnace.bench.table import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.bench.measurements import Figure
    from pinnace.bench.run_directory import RunDirectory, Sample

SIGNIFICANT = 0.01
LEAST_CHANGE = 0.01
LEAST_SAMPLES = 5  # on each side: with fewer, no difference has p < 0.01
HEADER = ("measurement", "model", "A", "B", "unit", "B / A", "95 %", "p", "verdict")
LEFT = {"measurement", "model", "unit", "verdict"}


class Verdict(StrEnum):
    """What can be said of a difference."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "within noise"
    TOO_FEW = "too few samples"
    ONLY_A = "only in A"
    ONLY_B = "only in B"


@dataclass(frozen=True, kw_only=True)
class FigureComparison:
    """One figure of one model in both runs."""

    figure: Figure
    model: Model
    before: tuple[float, ...]
    after: tuple[float, ...]
    ratio: float | None
    interval: tuple[float, float] | None
    p: float | None
    verdict: Verdict


def compare(before: Sequence[Sample], after: Sequence[Sample]) -> list[FigureComparison]:
    """All figures that either run has, in the order of the measurements."""
    left, right = values_of(before), values_of(after)
    keys = [(name, model) for name in FIGURES for model in Model if (name, model) in left or (name, model) in right]
    return [change(FIGURES[name], model, left.get((name, model), []), right.get((name, model), []))
            for name, model in keys]  # fmt: skip


def change(figure: Figure, model: Model, before: Sequence[float], after: Sequence[float]) -> FigureComparison:
    ratio = interval = p = None
    if before and after:
        ratio = median(after) / median(before)
        interval = ratio_interval(after, before)
        p = mann_whitney(before, after)
    return FigureComparison(
        figure=figure,
        model=model,
        before=tuple(before),
        after=tuple(after),
        ratio=ratio,
        interval=interval,
        p=p,
        verdict=verdict(figure, before, after, ratio, p),
    )


def verdict(
    figure: Figure, before: Sequence[float], after: Sequence[float], ratio: float | None, p: float | None
) -> Verdict:
    if ratio is None or p is None:
        return Verdict.ONLY_A if before else Verdict.ONLY_B
    if min(len(before), len(after)) < LEAST_SAMPLES:
        return Verdict.TOO_FEW
    if p >= SIGNIFICANT or abs(ratio - 1) < LEAST_CHANGE:
        return Verdict.NOISE
    return Verdict.BETTER if (ratio > 1) == (figure.better is Better.MORE) else Verdict.WORSE


def cells(changes: Sequence[FigureComparison]) -> list[tuple[str, ...]]:
    """The header, and a row for each change."""
    return [HEADER, *(row(found) for found in changes)]


def row(found: FigureComparison) -> tuple[str, ...]:
    task = TASK_OF_FIGURE[found.figure.name]
    return (
        f"{task.group}: {found.figure.title}",
        found.model.label,
        number(median(found.before)) if found.before else "",
        number(median(found.after)) if found.after else "",
        found.figure.unit,
        "" if found.ratio is None else f"{found.ratio:.3f}",
        f"{found.interval[0]:.3f}..{found.interval[1]:.3f}" if found.interval else "",
        "" if found.p is None else f"{found.p:.3f}" if found.p >= 0.001 else "<0.001",
        found.verdict,
    )


def differences(before: RunDirectory, after: RunDirectory) -> list[str]:
    """What else differs between two runs, and may be the reason: machine, versions, parameters."""
    left, right = _flat(before.about()), _flat(after.about())
    return [f"{name}: {left.get(name, 'none')} → {right.get(name, 'none')}"
            for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]  # fmt: skip


def _flat(about: dict[str, Any]) -> dict[str, Any]:
    settings = about["settings"]
    machine = (about["machine"].get("descriptions") or [{}])[0]
    hardware = {name: machine.get(name) for name in ("host", "cpu", "cpus", "threads", "memory", "kernel")}
    shown = {name: settings[name] for name in ("options", "nodes", "image", "startup_image")}
    return {**hardware, **shown, **settings["parameters"], **about["versions"]}


def as_json(changes: Sequence[FigureComparison]) -> list[dict[str, Any]]:
    return [asdict(found) | {"figure": found.figure.name} for found in changes]
