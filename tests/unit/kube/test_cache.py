"""What is known of the API's objects."""

from __future__ import annotations

from typing import Any

from pinnace.kube.cache import Cache, namespaced_name, uid
from pinnace.kube.watch import Changed, Listed


def thing(name: str, version: int = 1, *, namespace: str = "a", of: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": of or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata | {"managedFields": ["large"]}, "spec": {"version": version}}


def versions(cache: Cache, kind: str = "pods") -> dict[str, int]:
    return {key: found["spec"]["version"] for key, found in cache[kind].items()}


def test_a_cache_is_synced_when_all_kinds_were_listed() -> None:
    cache = Cache("pods", "nodes")
    cache.apply(Listed(kind="pods", objects=[thing("one")]))
    assert not cache.has_synced()
    cache.apply(Listed(kind="nodes", objects=[]))
    assert cache.has_synced()
    cache.wait_synced()


def test_what_is_told_of_changes_is_known() -> None:
    cache = Cache("pods")
    assert cache.apply(Changed(kind="pods", object=thing("one"), gone=False)) == [thing("one") | cache["pods"]["a/one"]]
    cache.apply(Changed(kind="pods", object=thing("two", 7), gone=False))
    assert versions(cache) == {"a/one": 1, "a/two": 7}
    cache.apply(Changed(kind="pods", object=thing("one", 2), gone=True))
    assert versions(cache) == {"a/two": 7}
    assert cache.get("pods", "a/one") is None
    assert cache.keys("pods") == ["a/two"]


def test_a_list_replaces_what_was_known_and_tells_of_both() -> None:
    cache = Cache("pods")
    cache.apply(Listed(kind="pods", objects=[thing("one"), thing("two")]))
    told = cache.apply(Listed(kind="pods", objects=[thing("two", 3), thing("three")]))
    assert [namespaced_name(found) for found in told] == ["a/two", "a/three", "a/one"]
    assert versions(cache) == {"a/two": 3, "a/three": 1}


def test_a_later_version_is_kept_but_not_against_a_successor() -> None:
    cache = Cache("pods")
    assert cache.update("pods", thing("one", 10))
    assert not cache.update("pods", thing("one", 9))
    assert cache.update("pods", thing("one", 10))
    assert versions(cache) == {"a/one": 10}
    assert cache.update("pods", thing("one", 5, of="successor"))
    cache.delete("pods", thing("one", 10))
    assert versions(cache) == {"a/one": 5}


def test_what_is_missing_in_the_list_of_a_namespace() -> None:
    cache = Cache("pods")
    for found in (thing("one"), thing("two"), thing("one", namespace="b")):
        cache.update("pods", found)
    assert [namespaced_name(found) for found in cache.missing("pods", [thing("two")], namespace="a")] == ["a/one"]
    assert len(cache.missing("pods", [])) == 3


def test_what_nobody_asks_for_is_not_kept() -> None:
    cache = Cache("pods", key=uid, slim=lambda found: {"metadata": found["metadata"]})
    cache.update("pods", thing("one"))
    assert cache["pods"]["uid-one"].keys() == {"metadata"}
    assert "managedFields" not in cache["pods"]["uid-one"]["metadata"]


def test_what_is_in_no_namespace() -> None:
    assert namespaced_name({"metadata": {"name": "n1"}}) == "n1"
