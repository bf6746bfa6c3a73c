"""The samples of a run as figures: for each model the median, the spread, and the ratio to bare Slurm."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pinnace.bench.measurements import FIGURES, TASK_OF_FIGURE, Model
from pinnace.bench.published import NOTE, PUBLISHED
from pinnace.bench.statistics import Summary, ratio_interval, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.bench.measurements import Figure, Group
    from pinnace.bench.run_directory import RunDirectory, Sample

LEAST_FOR_INTERVAL = 3  # samples on each side


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure of one model. Without samples of bare Slurm there is no ratio."""

    figure: Figure
    model: Model
    values: tuple[float, ...]
    summary: Summary
    ratio: float | None = None
    interval: tuple[float, float] | None = None  # of the ratio, 95 %

    @property
    def group(self) -> Group:
        return TASK_OF_FIGURE[self.figure.name].group


def values_of(samples: Sequence[Sample]) -> dict[tuple[str, Model], list[float]]:
    """The values of every figure and model. Where a task was done again, the last time counts."""
    last = {(sample.task, sample.model, sample.round): sample for sample in samples if not sample.error}
    found: dict[tuple[str, Model], list[float]] = {}
    for sample in last.values():
        for name, value in sample.values.items():
            found.setdefault((name, sample.model), []).append(value)
    return found


def results_of(samples: Sequence[Sample]) -> list[Result]:
    """All figures that have samples, in the order of the measurements, bare Slurm first."""
    values = values_of(samples)
    found = []
    for figure in FIGURES.values():
        bare = values.get((figure.of_bare, Model.BARE), [])
        for model in Model:
            own = values.get((figure.name, model))
            found += [result(figure, model, own, bare)] if own else []
    return found


def result(figure: Figure, model: Model, values: Sequence[float], bare: Sequence[float]) -> Result:
    about = summary(values)
    ratio, interval = None, None
    if model is not Model.BARE and bare:
        ratio = about.median / summary(bare).median
        if min(len(values), len(bare)) >= LEAST_FOR_INTERVAL:
            interval = ratio_interval(values, bare)
    return Result(figure=figure, model=model, values=tuple(values), summary=about, ratio=ratio, interval=interval)


def errors_of(samples: Sequence[Sample]) -> list[Sample]:
    """What failed and was not measured later."""
    done = {(sample.task, sample.model, sample.round) for sample in samples if not sample.error}
    failed = {(sample.task, sample.model, sample.round): sample for sample in samples if sample.error}
    return [sample for key, sample in failed.items() if key not in done]


def as_json(run: RunDirectory) -> dict[str, Any]:
    """Everything: settings, machine, versions, figures with all their values, errors, and what was published."""
    samples = run.samples()
    return {
        **run.about(),
        "results": [
            {
                "figure": found.figure.name,
                "title": found.figure.title,
                "group": found.group,
                "unit": found.figure.unit,
                "better": found.figure.better,
                "model": found.model,
                "baseline": found.figure.of_bare,
                "values": list(found.values),
                **asdict(found.summary),
                "ratio": found.ratio,
                "ratio_interval": found.interval,
                "published": PUBLISHED.get(found.figure.published),
            }
            for found in results_of(samples)
        ],
        "errors": [asdict(sample) for sample in errors_of(samples)],
        "samples": [asdict(sample) for sample in samples],
        "published": {"note": NOTE, "figures": PUBLISHED},
    }


def as_csv(samples: Sequence[Sample]) -> str:
    """A line for each value."""
    output = io.StringIO()
    writer = csv.writer(output)
    writer.writerow(["round", "model", "task", "figure", "value", "unit", "begin", "seconds", "error"])
    for sample in samples:
        common = [f"{sample.begin:.3f}", f"{sample.seconds:.3f}", sample.error]
        for name, value in sample.values.items() or {"": ""}.items():
            unit = FIGURES[name].unit if name in FIGURES else ""
            writer.writerow([sample.round, sample.model, sample.task, name, value, unit, *common])
    return output.getvalue()


def write(run: RunDirectory) -> None:
    (run.path / "results.json").write_text(json.dumps(as_json(run), indent=2))
    (run.path / "results.csv").write_text(as_csv(run.samples()))
