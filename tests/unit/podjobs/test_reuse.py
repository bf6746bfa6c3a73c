"""Which pods may follow one another in the same job."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pinnace.errors import SlurmError
from pinnace.podjobs.reuse import JobName, is_waiting, reuse_key, reuse_window
from pinnace.podjobs.settings import PodJobSettings
from unit.podjobs.samples import container, pod

SETTINGS = PodJobSettings(reuse_seconds=60)


def of(owner: str, name: str = "one", **more: Any) -> dict[str, Any]:
    body = pod(name, **more)
    body["metadata"]["ownerReferences"] = [{"kind": "Job", "name": owner, "uid": owner, "controller": True}]
    return body


def kind(body: dict[str, Any], settings: PodJobSettings = SETTINGS) -> str:
    return reuse_key(body, [], settings, ["--partition=main"])


def test_pods_of_one_owner_that_ask_for_the_same_are_alike() -> None:
    assert kind(of("a", "one"))
    assert kind(of("a", "one")) == kind(of("a", "two"))


@pytest.mark.parametrize(
    "other",
    [
        of("b"),
        of("a", containers=[container(cpu="2")]),
        of("a", annotations={"pinnace.dev/flags": "--qos=high"}),
        of("a", nodeSelector={"feature.pinnace.dev/fast": "true"}),
        of("a", activeDeadlineSeconds=600),
    ],
)
def test_others_are_not(other: dict[str, Any]) -> None:
    assert kind(other) not in {"", kind(of("a"))}


@pytest.mark.parametrize(
    "alone",
    [
        pod(),
        of("a", annotations={"pinnace.dev/flags": "--nodes=2"}),
        of("a", annotations={"pinnace.dev/flags": "--begin=now+60"}),
        of("a", annotations={"pinnace.dev/flags": "--wrap=no"}),
    ],
)
def test_some_have_their_job_to_themselves(alone: dict[str, Any]) -> None:
    assert not kind(alone)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (of("a"), 60),
        (of("a", activeDeadlineSeconds=30), 60),
        (of("a", annotations={"pinnace.dev/flags": "--time=1:00:00"}), 60),
        (of("a", annotations={"pinnace.dev/flags": "--time=5"}), 30),
        (of("a", annotations={"pinnace.dev/flags": "--time=5"}, activeDeadlineSeconds=300), 0),
        (of("a", annotations={"pinnace.dev/flags": "--time=UNLIMITED"}), 60),
    ],
)
def test_whoever_comes_later_has_the_time_that_was_asked_for(body: dict[str, Any], seconds: float) -> None:
    assert reuse_window(body, [], SETTINGS, []) == pytest.approx(seconds)


def test_it_can_be_switched_off() -> None:
    assert not kind(of("a"), PodJobSettings(reuse_seconds=0))


def test_only_pods_that_wait_can_be_taken() -> None:
    assert is_waiting(pod())
    for body in (pod(node="job-7"), pod(deleted=True), pod(phase="Failed"), pod(schedulerName="other")):
        assert not is_waiting(body)


def test_a_job_has_the_name_of_its_last_pod_and_slurm_is_not_told_of_all() -> None:
    told: list[tuple[int, str, str]] = []
    name = JobName(7, lambda *words: told.append(words), interval=60.0)
    name.change("first", "of first")
    while not told:
        time.sleep(0.01)
    for number in range(50):
        name.change(f"next-{number}", "another")
    name.finish()
    assert told == [(7, "first", "of first"), (7, "next-49", "another")]


def test_what_slurm_refuses_ends_no_job() -> None:
    def refuse(*_words: object) -> None:
        raise SlurmError("Access denied")

    name = JobName(7, refuse, interval=0.0)
    name.change("first", "of first")
    name.finish()
    assert name.thread
    assert not name.thread.is_alive()
