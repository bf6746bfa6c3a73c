"""What the controller learns from accounting."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from pinnace.errors import SlurmError
from pinnace.podjobs.action_runner import ActionRunner
from pinnace.podjobs.actions import AskAccounting
from pinnace.podjobs.reconciler import NOT_KNOWN, Ended, Memory
from pinnace.slurm.commands import Slurm
from pinnace.slurm.jobs import AccountedJob
from pinnace.slurm.states import JobState
from unit.podjobs.samples import CLUSTER

if TYPE_CHECKING:
    from pinnace.podjobs.pod_api import PodApi
    from pinnace.spec import ClusterSpec


class FakeSlurm(Slurm):
    """Has an accounting, or none, and counts the questions."""

    def __init__(self, *rows: AccountedJob, fails: bool = False) -> None:
        self.rows, self.fails = rows, fails
        self.asked: list[tuple[int, ...]] = []

    def sacct(self, *jobs: int, since: str = "", steps: bool = False) -> list[AccountedJob]:
        assert (since, steps) == ("", False)
        self.asked.append(jobs)
        if self.fails:
            raise SlurmError("sacct: Slurm accounting storage is disabled")
        return list(self.rows)


def accounted(number: int, *, comment: str = "", submit_line: str = "") -> AccountedJob:
    return AccountedJob(id=number, state=JobState.FAILED, comment=comment, submit_line=submit_line)


def ask(slurm: Slurm, *jobs: int) -> Memory:
    def no_api() -> PodApi:
        raise AssertionError

    spec: ClusterSpec = SimpleNamespace(name=CLUSTER)  # type: ignore[assignment]
    memory = Memory()
    ActionRunner(no_api, slurm, spec, memory).run(AskAccounting(jobs=jobs))
    assert memory.next_accounting > time.monotonic()
    return memory


def test_a_job_is_believed_by_its_comment_or_the_line_that_submitted_it() -> None:
    mine = f"pinnace:{CLUSTER}:uid-one:default/one"
    slurm = FakeSlurm(
        accounted(1, comment=mine),
        accounted(2, submit_line=f"sbatch --parsable --comment={mine}"),
        accounted(3, comment="pinnace:other:uid-one:default/one", submit_line="sbatch thesis.sh"),
    )
    memory = ask(slurm, 1, 2, 3, 4)
    assert slurm.asked == [(1, 2, 3, 4)]
    proven, failed = frozenset({"uid-one"}), JobState.FAILED
    assert memory.ended == {
        1: Ended(state=failed, claims=proven),
        2: Ended(state=failed, claims=proven),
        3: Ended(state=failed, claims=frozenset()),
        4: NOT_KNOWN,
    }


def test_a_site_without_accounting_knows_nothing() -> None:
    assert ask(FakeSlurm(fails=True), 1, 2).ended == {1: NOT_KNOWN, 2: NOT_KNOWN}
