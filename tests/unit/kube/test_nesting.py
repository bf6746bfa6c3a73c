"""JSON of any depth."""

from __future__ import annotations

import json

import pytest

from pinnace.kube.nesting import MAX_DEPTH, MAX_DOCUMENT_DEPTH, is_too_deep, loads


def nested(levels: int) -> str:
    return '{"[\\"{": [' * (levels // 2) + '"]}\\\\"' + "]}" * (levels // 2)


@pytest.mark.parametrize("levels", [1200, 10_000])
def test_what_is_beside_something_deep_is_read(levels: int) -> None:
    text = f'{{"items": [{{"name": "a", "x": {nested(levels)}}}, {{"name": "b", "x": [1, "]"]}}]}}'
    for document in (loads(text), loads(text.encode())):
        assert [item["name"] for item in document["items"]] == ["a", "b"]
        assert [is_too_deep(item) for item in document["items"]] == [True, False]
        assert document["items"][1]["x"] == [1, "]"]


def test_how_deep_is_too_deep() -> None:
    assert not is_too_deep(json.loads(nested(MAX_DEPTH)))
    assert is_too_deep(json.loads(nested(MAX_DEPTH + 2)))
    assert not is_too_deep({})


@pytest.mark.parametrize("text", ["[" * 5000, "]" * 5000, "[" * (MAX_DOCUMENT_DEPTH - 1), "no JSON", ""])
def test_what_is_no_json_stays_so(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        loads(text)
