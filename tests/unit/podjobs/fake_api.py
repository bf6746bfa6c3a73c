"""An API server in memory that knows a few paths."""

from __future__ import annotations

from typing import Any

from pinnace.errors import ApiError
from pinnace.kube.client import Api


class FakeApi(Api):
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
