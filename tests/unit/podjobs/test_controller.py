"""When the controller asks Slurm for its queue; Slurm's answers and the clock are the test's."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.kube.watch import Changed
from pinnace.podjobs.controller import PODS, PodJobController
from pinnace.slurm.states import JobState
from pinnace.spec import Provisioning
from unit.podjobs.samples import CLUSTER, job, pod

if TYPE_CHECKING:
    from pinnace.slurm.jobs import QueuedJob

HOUR = 3600.0


class Site:
    """A controller, the queue that it sees, and how often it looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, provisioning: Provisioning) -> None:
        self.now, self.calls = 1000.0, 0
        self.queue: list[QueuedJob] = []
        spec = SimpleNamespace(
            name=CLUSTER, provisioning=provisioning, nodes=Path("/nonexistent"), directory=Path("/c")
        )
        self.controller = PodJobController(spec, SimpleNamespace())  # type: ignore[arg-type]
        self.controller.slurm = SimpleNamespace(squeue=self.squeue)  # type: ignore[assignment]
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(self.controller, "_files", dict)

    def squeue(self, **_: Any) -> list[QueuedJob]:
        self.calls += 1
        return list(self.queue)

    def calls_within(self, seconds: float) -> int:
        """How often it asks, if it is woken whenever it wants to be."""
        before, end = self.calls, self.now + seconds
        while self.controller.next_squeue <= end:
            self.now = max(self.now, self.controller.next_squeue)
            self.controller._ask_slurm()
        self.now = end
        return self.calls - before

    def hears(self, body: dict[str, Any], *, gone: bool = False) -> None:
        change = Changed(kind=PODS, object=body, gone=gone)
        if self.controller._concerns_jobs(change):
            self.controller._expect_changes()
        self.controller.cache.apply(change)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch, Provisioning(pods_as_jobs=True))


def test_a_thousand_pods_that_run_take_no_more_questions_than_none(site: Site) -> None:
    idle = site.calls_within(HOUR)
    for number in range(1000):
        site.hears(pod(f"p{number}", job=number + 1, node=f"job-{number + 1}", phase="Running"))
        site.queue.append(job(number + 1, uid=f"uid-p{number}"))
    assert 10 <= site.calls_within(10) <= 11, "they have only begun"
    site.calls_within(200)
    assert site.calls_within(HOUR) <= idle + 1


@pytest.mark.parametrize("event", ["ended", "gone", "queue"])
def test_what_changes_is_followed_every_second(site: Site, event: str) -> None:
    running = pod("one", job=1, node="job-1", phase="Running")
    site.hears(running)
    site.queue = [job(1)]
    site.calls_within(HOUR)
    assert site.calls_within(30) <= 3
    if event == "ended":
        site.hears(pod("one", job=1, node="job-1", phase="Succeeded"))
    elif event == "gone":
        site.hears(running, gone=True)
    else:
        site.queue = [job(1, JobState.COMPLETING)]
        site.calls_within(16)
    assert site.calls_within(5) >= 4


def test_what_we_tell_a_pod_that_waits_changes_nothing(site: Site) -> None:
    waiting = pod("one", job=1)
    site.hears(waiting)
    site.queue = [job(1, JobState.PENDING)]
    site.calls_within(HOUR)
    site.hears(waiting | {"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled"}]}})
    assert site.calls_within(30) <= 3


def test_elastic_nodes_go_by_the_latest_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, Provisioning(elastic=(0, 4)))
    site.queue = [job(1)]
    site.calls_within(HOUR)
    assert site.calls_within(30) >= 29
