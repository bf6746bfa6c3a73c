"""Size after size: each is measured and written at once, so that a failure or Ctrl-C costs only what is missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pinnace.bench.growth.directory import Growth
from pinnace.bench.growth.results import Size, figures
from pinnace.bench.table import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pinnace.bench.growth.directory import GrowthDirectory
    from pinnace.bench.growth.load import LoadSample
    from pinnace.bench.growth.sizes import NodesAndPods
    from pinnace.bench.runner import Listener

__all__ = ["GrowingCluster", "GrowthRunner"]


class GrowingCluster(Protocol):
    """A cluster that can be brought to sizes."""

    def machine(self) -> dict[str, Any]: ...
    def measure(self, size: NodesAndPods) -> LoadSample: ...


@dataclass(kw_only=True)
class GrowthRunner:
    """One cluster, from its start to the last size."""

    directory: GrowthDirectory
    sizes: tuple[NodesAndPods, ...]
    opened: Callable[[], AbstractContextManager[GrowingCluster]]
    listener: Listener
    conditions: Mapping[str, Any] = field(default_factory=dict)
    growth: Growth = field(default_factory=Growth)  # that was measured so far

    @property
    def missing(self) -> tuple[NodesAndPods, ...]:
        return self.sizes[len(self.growth.sizes) :]

    def execute(self) -> None:
        """Measure all sizes. What was measured is kept, however it ends."""
        self.listener.begin("starting the cluster")
        with self.opened() as session:
            machine = session.machine()
            self.listener.done(f"cluster is ready{f': {host}' if (host := machine.get('host')) else ''}")
            conditions = {**self.conditions, "machine": machine}
            for number_of, size in enumerate(self.sizes, start=1):
                label = f"{size.nodes:,} nodes, {size.pods:,} pods"
                self.listener.begin(f"{label} ({number_of} of {len(self.sizes)})")
                sample = session.measure(size)
                measured = Size(figures=figures(sample), raw={"sample": asdict(sample)})
                self.growth = Growth(conditions=conditions, sizes=(*self.growth.sizes, measured))
                self.directory.write(self.growth)
                self.listener.done(f"{label}: {summary(sample)}")


def summary(sample: LoadSample) -> str:
    """The most important figures, in a line."""
    return (
        f"nodes ready in {number(sample.nodes_seconds)} s, {number(sample.pods_per_second)} pods per second, "
        f"pod start p99 {number(sample.probe.p99)} s"
    )
