"""What the client makes of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from pinnace.errors import ApiError, PinnaceError
from pinnace.kube.client import API_FAILURES, Api, ignoring


class RefusingApi(Api):
    """Refuses everything with one HTTP status."""

    def __init__(self, code: int) -> None:
        self.code = code

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "") -> Any:
        del body, content_type
        raise ApiError(self.code, f"{method} {path}")


def test_a_refusal_is_one_of_our_errors_in_the_words_of_the_api() -> None:
    with pytest.raises(PinnaceError) as error:
        RefusingApi(403).get("/api")
    assert error.value.message == str(error.value) == "403: GET /api"
    assert isinstance(error.value, API_FAILURES)


def test_what_is_gone_is_no_error() -> None:
    gone, broken = RefusingApi(404), RefusingApi(500)
    assert gone.get_or_none("/api") is None
    assert gone.delete_if_there("/api") is None
    RefusingApi(409).create("/api", {})
    for call in (broken.get_or_none, broken.delete_if_there, lambda path: broken.create(path, {})):
        with pytest.raises(ApiError):
            call("/api")
    assert not broken.healthy("/readyz")


def test_only_the_named_refusals_are_ignored() -> None:
    with ignoring(404, 409):
        raise ApiError(409, "changed since")
    with pytest.raises(ApiError), ignoring(404):
        raise ApiError(409, "changed since")
    with pytest.raises(OSError, match="404"), ignoring(404):
        raise OSError("404")
