"""What the provisioner asks of the API, and what it makes of the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinnace.controlplane.api import ApiError
from pinnace.provisioner.hands import Kubernetes
from provisioner.samples import pod

if TYPE_CHECKING:
    from pinnace.controlplane.api import Api


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
