"""The timeline of one cluster, from its directory: marks and the components' own logs, put together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pinnace.timeline import component_logs
from pinnace.timeline.marks import LOGIN, read_marks, read_text
from pinnace.timeline.recorder import StepName
from pinnace.timeline.steps import StepGroup, StepPhase, TimelineStep, slurm_steps, steps_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ENDING = {StepName.CLUSTER_END, StepName.NODE_END}


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All steps of a cluster, in the order of time. ``origin`` is the beginning of the first."""

    cluster: str
    steps: tuple[TimelineStep, ...]

    @property
    def origin(self) -> float:
        return self.steps[0].begin if self.steps else 0.0

    def of_phase(self, phase: StepPhase) -> list[TimelineStep]:
        return [step for step in self.steps if step.phase is phase]

    def at(self, name: str) -> float | None:
        """How long after the origin a step first ended; None if it has not."""
        return next((step.end - self.origin for step in self.steps if step.name == name and step.end), None)

    @property
    def slurm(self) -> float:
        """How long the first agent had to wait for Slurm: the queue and srun, in seconds."""
        ends: dict[str, float] = {}
        for step in self.of_phase(StepPhase.START):
            if step.group is StepGroup.SLURM and step.end is not None:
                ends[step.where] = ends.get(step.where, 0.0) + step.end - step.begin
        queue = ends.pop(LOGIN, 0.0)
        return queue + min(ends.values(), default=0.0)

    def only(self, node: str) -> Timeline:
        """What happened on one node."""
        own = [step for step in self.steps if step.where == node]
        return Timeline(cluster=self.cluster, steps=with_phases(own))

    def to_json(self) -> dict[str, Any]:
        """Times are seconds after ``origin``, which is in seconds since the epoch."""
        return {
            "cluster": self.cluster,
            "origin": self.origin,
            "nodes_ready": rounded(self.at(StepName.NODES_WAIT)),
            "first_line": rounded(self.at(StepName.FIRST_LINE)),
            "slurm": rounded(self.slurm),
            "steps": [
                {
                    "where": step.where,
                    "name": step.name,
                    "group": step.group,
                    "phase": step.phase,
                    "begin": rounded(step.begin - self.origin),
                    "end": rounded(None if step.end is None else step.end - self.origin),
                }
                for step in self.steps
            ],
        }


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def read_timeline(cluster: Path, nodes: Sequence[str] | None = None) -> Timeline:
    """The timeline of a cluster's directory, of all nodes or of some. It may run, or have failed, or have ended."""
    steps = steps_of(read_marks(cluster))
    if nodes is not None:
        steps = [step for step in steps if step.where in {LOGIN, *nodes}]
    steps += slurm_steps(steps)
    for node in sorted({step.where for step in steps} - {LOGIN}):
        steps += _logged(cluster / "logs" / node, node, steps)
    return Timeline(cluster=cluster.name, steps=with_phases(steps))


def _logged(logs: Path, node: str, steps: Sequence[TimelineStep]) -> list[TimelineStep]:
    """What the components of a node say themselves."""

    def started(service: str) -> float | None:
        return min((step.begin for step in steps if (step.where, step.name) == (node, service)), default=None)

    found = component_logs.ContainerdLog(node).read(read_text(logs / "containerd.log"))
    if (begin := started("kubelet")) is not None:
        found += component_logs.kubelet_steps(read_text(logs / "kubelet.log"), node, begin)
    if (begin := started("kube-scheduler")) is not None:
        found += component_logs.scheduler_steps(read_text(logs / "kube-scheduler.log"), begin)
    return found


def with_phases(steps: Sequence[TimelineStep]) -> tuple[TimelineStep, ...]:
    """The steps in the order of time, each with its phase."""
    ordered = sorted(steps, key=lambda step: (step.begin, step.last))
    ending = min((step.begin for step in ordered if step.name in ENDING), default=math.inf)
    done = max(
        (step.last for step in ordered if step.name in {StepName.NODES_WAIT, StepName.FIRST_LINE} and step.end),
        default=math.inf,
    )

    def phase(step: TimelineStep) -> StepPhase:
        if step.begin >= ending:
            return StepPhase.END
        return StepPhase.START if step.begin <= done else StepPhase.RUN

    return tuple(replace(step, phase=phase(step)) for step in ordered)
