"""Which CPUs containers get."""

from __future__ import annotations

import pytest

from pinnace.node.limits.cpu_allocation import Claim, allocate, format_cpu_list, parse_cpu_list

ALL = frozenset(range(4))


def claim(name: str, cpus: int | None = None, *current: int, exclusive: bool = False) -> Claim:
    return Claim(container=name, cpus=cpus, exclusive=exclusive, current=frozenset(current) if current else None)


def test_without_a_limit_a_container_may_use_all() -> None:
    assert allocate(ALL, [claim("a"), claim("b")]) == {"a": ALL, "b": ALL}


def test_containers_with_limits_spread() -> None:
    given = allocate(ALL, [claim("a", 1), claim("b", 2), claim("c", 1)])
    assert [len(given[name]) for name in "abc"] == [1, 2, 1]
    assert given["a"] | given["b"] | given["c"] == ALL
    assert allocate(ALL, [claim("a", 9)]) == {"a": ALL}


def test_who_has_cpus_keeps_them() -> None:
    given = allocate(ALL, [claim("a", 1), claim("b", 1, 0), claim("c", 2, 0, 3)])
    assert given["b"] == {0}
    assert given["c"] == {0, 3}
    assert given["a"] == {1}


def test_whole_cpus_of_a_guaranteed_pod_are_its_own() -> None:
    given = allocate(ALL, [claim("limited", 1, 0), claim("free"), claim("own", 2, exclusive=True)])
    assert len(given["own"]) == 2
    assert given["free"] == ALL - given["own"]
    assert given["limited"] <= ALL - given["own"]


def test_a_new_one_does_not_displace_one_that_has_its_own() -> None:
    given = allocate(ALL, [claim("a", 2, exclusive=True), claim("b", 2, 0, 1, exclusive=True)])
    assert given == {"a": {2, 3}, "b": {0, 1}}


def test_others_move_to_what_is_left_and_back() -> None:
    displaced = allocate(ALL, [claim("own", 3, 0, 1, 2, exclusive=True), claim("limited", 2, 0, 1), claim("free")])
    assert displaced["limited"] == displaced["free"] == {3}
    back = allocate(ALL, [claim("limited", 2, 3), claim("free", None, 3)])
    assert back["free"] == ALL
    assert len(back["limited"]) == 2
    assert 3 in back["limited"]


def test_where_nothing_is_left_the_others_share_all() -> None:
    given = allocate(ALL, [claim("own", 4, exclusive=True), claim("free"), claim("limited", 1)])
    assert given["own"] == given["free"] == ALL
    assert len(given["limited"]) == 1


def test_more_than_there_are_is_shared() -> None:
    given = allocate(frozenset({0, 1}), [claim("a", 2, exclusive=True), claim("b", 2, exclusive=True)])
    assert given == {"a": {0, 1}, "b": {0, 1}}


@pytest.mark.parametrize(("text", "cpus"), [("0", {0}), ("0-2,5", {0, 1, 2, 5}), ("1,3", {1, 3}), ("", set())])
def test_lists_have_the_kernels_form(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(f"{text}\n") == cpus
    assert format_cpu_list(cpus) == text
