"""From marks to steps with a beginning and an end, and to the two phases that a timeline shows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pinnace.timeline.marks import LOGIN
from pinnace.timeline.recorder import MarkEvent, StepName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinnace.timeline.marks import Mark

QUEUE = "Slurm: queue"
SRUN = "Slurm: srun"
QUEUE_AND_SRUN = "Slurm: queue, srun"
CONTROL_PLANE = {
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "metrics-server", "metrics-api",
    "bootstrap", StepName.API, StepName.ROLES,
}  # fmt: skip


class StepGroup(StrEnum):
    """Whose time a step is."""

    COMMAND = "command"
    SLURM = "slurm"
    NODE = "node"
    CONTROL_PLANE = "control plane"
    POD = "pod"


class StepPhase(StrEnum):
    """START is until the first line of the workload, or until the nodes are ready; END begins with the request to end.

    RUN is what happens in between: services that start again, other pods.
    """

    START = "start"
    RUN = "run"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class TimelineStep:
    """What happened when, in seconds since the epoch. Without an end it has none, or none that is known."""

    where: str  # LOGIN, or the name of a node
    name: str
    group: StepGroup
    begin: float
    end: float | None = None
    phase: StepPhase = StepPhase.START

    @property
    def last(self) -> float:
        return self.begin if self.end is None else self.end


def group_of_step(where: str, name: str) -> StepGroup:
    if where == LOGIN:
        return StepGroup.COMMAND
    return StepGroup.CONTROL_PLANE if name in CONTROL_PLANE else StepGroup.NODE


def steps_of(marks: Iterable[Mark]) -> list[TimelineStep]:
    """Every BEGIN with the READY or END that follows it. One without a BEGIN is a moment."""
    by_step: dict[tuple[str, str], list[Mark]] = defaultdict(list)
    for mark in sorted(marks, key=lambda mark: mark.time):
        by_step[mark.where, mark.step].append(mark)
    found = []
    for (where, name), own in by_step.items():
        for begin, end in _spans(own):
            found.append(TimelineStep(where=where, name=name, group=group_of_step(where, name), begin=begin, end=end))
    return found


def _spans(marks: Sequence[Mark]) -> list[tuple[float, float | None]]:
    spans: list[tuple[float, float | None]] = []
    for mark in marks:
        is_open = bool(spans) and spans[-1][1] is None
        if mark.event is MarkEvent.BEGIN:
            spans.append((mark.time, None))
        elif is_open:
            spans[-1] = (spans[-1][0], mark.time)
        elif mark.event is MarkEvent.READY or not spans:
            spans.append((mark.time, mark.time))
    return spans


def slurm_steps(steps: Sequence[TimelineStep]) -> list[TimelineStep]:
    """Slurm's part in the start of a cluster, and in that of each node that has joined."""
    return [*_slurm_steps_of_cluster(steps), *_slurm_steps_of_joined(steps)]


def _first(steps: Sequence[TimelineStep], where: str, name: str) -> TimelineStep | None:
    found = (step for step in steps if (step.where, step.name) == (where, name))
    return min(found, key=lambda step: step.begin, default=None)


def _slurm_steps_of_joined(steps: Sequence[TimelineStep]) -> list[TimelineStep]:
    """From the submission of the node's own job to its agent."""
    found = []
    for where in sorted({step.where for step in steps} - {LOGIN}):
        submission, agent = _first(steps, where, StepName.SUBMISSION), _first(steps, where, StepName.AGENT)
        if submission and agent:
            begin = min(submission.last, agent.begin)
            found.append(TimelineStep(where=where, name=QUEUE, group=StepGroup.SLURM, begin=begin, end=agent.begin))
    return found


def _slurm_steps_of_cluster(steps: Sequence[TimelineStep]) -> list[TimelineStep]:
    """From the submission to the batch script, if there is one, and from there to each agent."""
    submission, batch = _first(steps, LOGIN, StepName.SUBMISSION), _first(steps, LOGIN, StepName.BATCH_SCRIPT)
    if submission is None:
        return []
    found, before = [], submission.last
    if batch:
        found.append(
            TimelineStep(where=LOGIN, name=QUEUE, group=StepGroup.SLURM, begin=submission.last, end=batch.begin)
        )
        before = batch.begin
    joined = {step.where for step in steps if step.name == StepName.JOIN}  # of jobs of their own
    agents = [step for step in steps if step.name == StepName.AGENT and step.where not in joined]
    name = SRUN if batch else QUEUE_AND_SRUN
    found += [
        TimelineStep(where=step.where, name=name, group=StepGroup.SLURM, begin=min(before, step.begin), end=step.begin)
        for step in agents
    ]
    return found
