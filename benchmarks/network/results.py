"""What the clients said, as figures: medians, spread, ratios to the bare machine, and whether goals were met."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.network.measurements import Measurement, NetworkPath, Unit
from pinnace.bench.parsing import first_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Figures", "Result", "Sample", "as_json", "read_sample"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of a client. ``cpu`` is of the whole machine, for a gigabyte or for 1,000 requests; see ``Unit``."""

    value: float
    cpu: float
    p99: float | None = None


def read_sample(measurement: Measurement, output: str, *, requests: int) -> Sample:
    said = first_json(output)
    cpu = json.loads(output.splitlines()[-1])["cpu_seconds"]  # rr has it in its line; `rr cpu` adds one
    if measurement.unit is Unit.THROUGHPUT:
        received = said["end"]["sum_received"]
        return Sample(value=received["bits_per_second"] / 1e9, cpu=cpu / (received["bytes"] / 1e9))
    return Sample(value=said["median"], cpu=cpu / requests * 1000, p99=said["p99"])


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The samples of one path, and how they compare to the bare machine; ``ratio`` is that of the medians."""

    median: float
    low: float
    high: float
    ratio: float
    cpu: float
    p99: float | None
    goal: float | None
    met: bool | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """All samples of a measurement, in the order of the rounds."""

    measurement: Measurement
    samples: Mapping[NetworkPath, Sequence[Sample]]

    def figures(self, path: NetworkPath) -> Figures:
        samples = self.samples[path]
        values = [sample.value for sample in samples]
        tails = [sample.p99 for sample in samples if sample.p99 is not None]
        ratio = median(values) / median(sample.value for sample in self.samples[NetworkPath.BARE])
        return Figures(
            median=median(values),
            low=min(values),
            high=max(values),
            ratio=ratio,
            cpu=median(sample.cpu for sample in samples),
            p99=median(tails) if tails else None,
            goal=self.measurement.goals.get(path),
            met=self.measurement.meets(path, ratio),
        )


def as_json(results: Sequence[Result], **conditions: Any) -> dict[str, Any]:
    """Everything that was measured, and under which conditions."""
    return {**conditions, "measurements": [result_as_json(result) for result in results]}


def result_as_json(result: Result) -> dict[str, Any]:
    measurement = result.measurement
    return {
        "name": measurement.name,
        "unit": measurement.unit,
        "cpu_unit": measurement.unit.cpu_unit,
        "paths": {
            path: asdict(result.figures(path)) | {"samples": [asdict(sample) for sample in samples]}
            for path, samples in result.samples.items()
        },
    }
