"""Samples of a run, as the tests need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.bench.measurements import FIGURES, TASK_OF_FIGURE, Model, Parameters
from pinnace.bench.run_directory import RunDirectory, Sample, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AT_ONCE = Parameters(settle_seconds=0.0)
HOST = {"host": "n1", "cpu": "A <processor>", "cpus": 8, "threads": 4, "caches": 32 << 20, "memory": 16 << 30,
        "kernel": "6.1", "load": 0.1, "scratch": "/tmp", "time": 1.0}  # fmt: skip
VALUES = {
    ("cpu", Model.BARE): [1000.0, 1010.0, 990.0, 1005.0, 995.0],
    ("cpu", Model.OVER): [998.0, 1001.0, 996.0, 1003.0, 990.0],
    ("startup", Model.BARE): [0.1, 0.12, 0.11, 0.1, 0.13],
    ("startup", Model.OVER): [5.5, 5.7, 5.4, 5.6, 5.8],
    ("fio-directory-read", Model.BARE): [100.0, 101.0, 99.0, 100.5, 99.5],
    ("fio-shared-read", Model.OVER): [80.0, 81.0, 79.0, 80.5, 79.5],
    ("tcp-rr-host", Model.BARE): [50.0, 51.0, 49.0, 50.5, 49.5],
    ("tcp-rr-host", Model.PODS): [60.0, 61.0, 59.0, 60.5, 59.5],
}


def samples(values: dict[tuple[str, Model], Sequence[float]] | None = None) -> list[Sample]:
    """A sample for each value, in rounds."""
    return [
        Sample(round=number, model=model, task=TASK_OF_FIGURE[name].name, values={name: value}, begin=1e9, seconds=1.0)
        for (name, model), found in (values or VALUES).items()
        for number, value in enumerate(found, start=1)
    ]


def run_at(path: Path, found: Sequence[Sample] = (), **settings: object) -> RunDirectory:
    given = {"image": "localhost/pinnace/bench:1", "startup_image": "b", "parameters": AT_ONCE} | settings
    run = RunDirectory.create(path, Settings(**given))  # type: ignore[arg-type]
    run.update(machine={"hosts": ["n1", "n2"], "cpus": 4, "descriptions": [HOST]}, versions={"pinnace": "1<2"})
    for sample in found:
        run.add(sample)
    return run


assert all(name in FIGURES for name, _ in VALUES)
