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
