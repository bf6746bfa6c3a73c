"""From marks to steps, phases and Slurm's part."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pinnace.timeline.marks import LOGIN, Mark
from pinnace.timeline.recorder import MarkEvent, Recorder, StepName, command_marks, node_marks
from pinnace.timeline.steps import (
    QUEUE,
    QUEUE_AND_SRUN,
    SRUN,
    StepGroup,
    StepPhase,
    slurm_steps,
    steps_of,
)
from pinnace.timeline.timeline import read_timeline

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, READY, END = MarkEvent.BEGIN, MarkEvent.READY, MarkEvent.END


def mark(time: float, step: str, event: MarkEvent, where: str = "n1") -> Mark:
    return Mark(time=time, where=where, step=step, event=event)


def spans(*marks: Mark) -> list[tuple[str, float, float | None]]:
    return [(step.name, step.begin, step.end) for step in steps_of(marks)]


def test_a_step_is_over_when_it_is_ready_or_has_ended() -> None:
    assert spans(mark(1, "etcd", BEGIN), mark(2, "etcd", READY)) == [("etcd", 1, 2)]
    assert spans(mark(1, "drain", BEGIN), mark(3, "drain", END)) == [("drain", 1, 3)]
    assert spans(mark(1, "links", BEGIN)) == [("links", 1, None)]


def test_what_is_only_ready_is_a_moment() -> None:
    assert spans(mark(4, "API answers", READY)) == [("API answers", 4, 4)]


def test_a_service_that_starts_again_has_two_steps() -> None:
    found = spans(mark(1, "kubelet", BEGIN), mark(9, "kubelet", BEGIN), mark(10, "kubelet", READY))
    assert found == [("kubelet", 1, None), ("kubelet", 9, 10)]


def test_the_end_of_a_service_that_was_ready_is_no_step() -> None:
    assert spans(mark(1, "etcd", BEGIN), mark(2, "etcd", READY), mark(9, "etcd", END)) == [("etcd", 1, 2)]


def test_groups() -> None:
    found = steps_of([mark(1, "etcd", BEGIN), mark(1, "mounts", BEGIN), mark(1, "command", BEGIN, LOGIN)])
    assert [step.group for step in found] == [StepGroup.CONTROL_PLANE, StepGroup.NODE, StepGroup.COMMAND]


def test_slurms_part_of_a_batch_job() -> None:
    found = slurm_steps(
        steps_of(
            [
                mark(1.0, StepName.SUBMISSION, BEGIN, LOGIN),
                mark(1.5, StepName.SUBMISSION, END, LOGIN),
                mark(2.0, StepName.BATCH_SCRIPT, BEGIN, LOGIN),
                mark(2.5, StepName.AGENT, BEGIN, "n1"),
                mark(2.75, StepName.AGENT, BEGIN, "n2"),
            ]
        )
    )
    assert [(step.where, step.name, step.begin, step.end) for step in found] == [
        (LOGIN, QUEUE, 1.5, 2.0),
        ("n1", SRUN, 2.0, 2.5),
        ("n2", SRUN, 2.0, 2.75),
    ]


def test_slurms_part_of_srun() -> None:
    marks = [mark(1.5, StepName.SUBMISSION, END, LOGIN), mark(2.5, StepName.AGENT, BEGIN)]
    (step,) = slurm_steps(steps_of(marks))
    assert (step.name, step.begin, step.end) == (QUEUE_AND_SRUN, 1.5, 2.5)


def test_a_node_that_joins_is_of_another_job() -> None:
    marks = [mark(1.5, StepName.SUBMISSION, END, LOGIN), mark(9.5, StepName.AGENT, BEGIN, "job-7")]
    marks += [mark(9.6, StepName.JOIN, BEGIN, "job-7"), mark(9.7, StepName.JOIN, END, "job-7")]
    assert slurm_steps(steps_of(marks)) == []


def test_slurms_part_of_a_node_that_joins() -> None:
    marks = [mark(9.0, StepName.SUBMISSION, BEGIN, "job-7"), mark(9.1, StepName.SUBMISSION, END, "job-7")]
    marks += [mark(9.5, StepName.AGENT, BEGIN, "job-7"), mark(9.6, StepName.JOIN, BEGIN, "job-7")]
    (step,) = slurm_steps(steps_of(marks))
    assert (step.where, step.name, step.begin, step.end) == ("job-7", QUEUE, 9.1, 9.5)


def record(path: Path, *marks: tuple[float, str, MarkEvent]) -> None:
    recorder = Recorder()
    for time, step, event in marks:
        recorder.mark(step, event, at=time)
    recorder.save(path)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """What a cluster of one node leaves: command, batch script, agent; ready after 4 s, the first line after 5."""
    record(
        command_marks(tmp_path),
        (100.0, StepName.COMMAND, BEGIN), (100.5, StepName.COMMAND, END),
        (100.5, StepName.SUBMISSION, BEGIN), (100.6, StepName.SUBMISSION, END),
        (100.6, StepName.NODES_WAIT, BEGIN), (104.0, StepName.NODES_WAIT, END),
        (105.0, StepName.FIRST_LINE, READY),
        (200.0, StepName.CLUSTER_END, BEGIN), (201.0, StepName.CLUSTER_END, END),
    )  # fmt: skip
    record(
        node_marks(tmp_path, "n1"),
        (101.0, StepName.AGENT, BEGIN), (101.2, StepName.NETWORK, BEGIN), (101.3, StepName.NETWORK, END),
        (150.0, "usage", BEGIN), (200.1, "drain", BEGIN), (200.4, "drain", END),
    )  # fmt: skip
    record(node_marks(tmp_path, "job-7"), (120.0, StepName.AGENT, BEGIN), (120.1, StepName.JOIN, BEGIN))
    return tmp_path


def test_phases(cluster: Path) -> None:
    timeline = read_timeline(cluster, ["n1"])
    phases = {step.name: step.phase for step in timeline.steps}
    assert phases[StepName.NETWORK] is StepPhase.START
    assert phases["usage"] is StepPhase.RUN
    assert phases["drain"] is StepPhase.END
    assert phases[StepName.CLUSTER_END] is StepPhase.END
    assert "job-7" not in {step.where for step in timeline.steps}


def test_what_is_asked_first(cluster: Path) -> None:
    data = json.loads(json.dumps(read_timeline(cluster, ["n1"]).to_json()))
    assert (data["origin"], data["nodes_ready"], data["first_line"], data["slurm"]) == (100.0, 4.0, 5.0, 0.4)
    network = next(step for step in data["steps"] if step["name"] == "network")
    assert (network["begin"], network["end"], network["phase"], network["group"]) == (1.2, 1.3, "start", "node")


def test_one_node_alone(cluster: Path) -> None:
    timeline = read_timeline(cluster, ["job-7"]).only("job-7")
    assert [(step.where, step.name) for step in timeline.steps if step.name == StepName.AGENT] == [("job-7", "agent")]


def test_a_cluster_that_failed_shows_all_there_is(tmp_path: Path) -> None:
    record(node_marks(tmp_path, "n1"), (1.0, StepName.AGENT, BEGIN), (2.0, StepName.NAMESPACES, BEGIN))
    timeline = read_timeline(tmp_path)
    assert [(step.name, step.end, step.phase) for step in timeline.steps] == [
        (StepName.AGENT, None, StepPhase.START),
        (StepName.NAMESPACES, None, StepPhase.START),
    ]


def test_a_directory_without_marks(tmp_path: Path) -> None:
    assert read_timeline(tmp_path).steps == ()
