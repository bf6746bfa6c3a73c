"""What the provisioner asks of the API, and what it makes of the answers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.errors import ApiError, SlurmError
from pinnace.podjobs.actions import Hands, Kubernetes
from pinnace.podjobs.reconciler import NOT_KNOWN, AskAccounting, Ended, Memory
from pinnace.slurm.commands import Accounted, Slurm
from pinnace.slurm.states import JobState
from unit.podjobs.samples import CLUSTER, pod

if TYPE_CHECKING:
    from pinnace.kube.client import Api
    from pinnace.spec import ClusterSpec


class FakeApi:
    """Answers a request by its path, and refuses what it does not know."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "") -> Any:
        del body, content_type
        self.asked.append(f"{method} {path}")
        answer = self.answers.get(path, ApiError(404, "not found"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get(self, path: str) -> Any:
        return self.request("GET", path)


class FakeSlurm(Slurm):
    """Has an accounting, or none, and counts the questions."""

    def __init__(self, *rows: Accounted, fails: bool = False) -> None:
        self.rows, self.fails = rows, fails
        self.asked: list[tuple[int, ...]] = []

    def sacct(self, *jobs: int) -> list[Accounted]:
        self.asked.append(jobs)
        if self.fails:
            raise SlurmError("sacct: Slurm accounting storage is disabled")
        return list(self.rows)


def accounted(number: int, *, comment: str = "", submit_line: str = "") -> Accounted:
    return Accounted(id=number, state=JobState.FAILED, comment=comment, submit_line=submit_line)


def ask(slurm: Slurm, *jobs: int) -> Memory:
    def no_api() -> Kubernetes:
        raise AssertionError

    spec: ClusterSpec = SimpleNamespace(name=CLUSTER)  # type: ignore[assignment]
    memory = Memory()
    Hands(no_api, slurm, spec, memory).do(AskAccounting(jobs=jobs))
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


def kubernetes(api: FakeApi) -> Kubernetes:
    real: Api = api  # type: ignore[assignment]
    return Kubernetes(real)


@pytest.mark.parametrize("code", [404, 409, 422, 429, 500])
def test_what_the_api_says_of_one_eviction_stops_nothing(code: int) -> None:
    """Two PodDisruptionBudgets for one pod are an internal error of the API server."""
    path = "/api/v1/namespaces/default/pods/one/eviction"
    api = FakeApi({path: ApiError(code, "This pod has more than one PodDisruptionBudget")})
    kubernetes(api).evict(pod())
    assert api.asked == [f"POST {path}"]


def owned_by(**changes: str) -> dict[str, Any]:
    body = pod()
    reference: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", "name": "sum", "uid": "1", "controller": True}
    body["metadata"]["ownerReferences"] = [reference | changes]
    return body


def test_owners_are_found_from_the_nearest_on() -> None:
    of_job = {"name": "sum", "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "daily",
                                                  "controller": True}]}  # fmt: skip
    where = "/apis/batch/v1/namespaces/default"
    api = FakeApi(
        {f"{where}/jobs/sum": {"metadata": of_job}, f"{where}/cronjobs/daily": {"metadata": {"name": "daily"}}}
    )
    found = kubernetes(api).owners(owned_by())
    assert [(owner["kind"], owner["metadata"]["name"]) for owner in found] == [("Job", "sum"), ("CronJob", "daily")]


@pytest.mark.parametrize(
    "changes",
    [
        {"apiVersion": "apps/v1 x"},
        {"apiVersion": "v1"},
        {"apiVersion": "apps/../v1"},
        {"apiVersion": "apps/v1?watch=true"},
        {"kind": "Pod"},
        {"name": "a b"},
        {"name": "x?watch=true"},
        {"name": "../../secrets"},
        {"name": ""},
        {"name": "a\n"},
    ],
)
def test_an_owner_that_cannot_be_asked_for_is_none(changes: dict[str, str]) -> None:
    api = FakeApi({})
    assert kubernetes(api).owners(owned_by(**changes)) == []
    assert api.asked == []
