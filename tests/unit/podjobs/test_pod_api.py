"""What is asked of the API about pods, and what is made of its answers."""

from __future__ import annotations

from typing import Any

import pytest

from pinnace.errors import ApiError
from pinnace.podjobs.pod_api import PodApi
from unit.podjobs.fake_api import FakeApi
from unit.podjobs.samples import pod


@pytest.mark.parametrize("code", [404, 409, 422, 429, 500])
def test_what_the_api_says_of_one_eviction_stops_nothing(code: int) -> None:
    """Two PodDisruptionBudgets for one pod are an internal error of the API server."""
    path = "/api/v1/namespaces/default/pods/one/eviction"
    api = FakeApi({path: ApiError(code, "This pod has more than one PodDisruptionBudget")})
    PodApi(api).evict(pod())
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
    found = PodApi(api).owners(owned_by())
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
    assert PodApi(api).owners(owned_by(**changes)) == []
    assert api.asked == []
