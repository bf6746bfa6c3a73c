"""How a node that joins is marked."""

from __future__ import annotations

import re

import pytest

from pinnace.node import launch
from pinnace.podjobs import joining

WORDS = ["--cluster", "/c", "--join"]


@pytest.mark.parametrize(
    ("words", "taints"),
    [
        (["--pod", "default/one/uid-one"], ("pinnace.dev/pod=uid-one:NoSchedule",)),
        (["--as", "n1-7"], ("pinnace.dev/pod=n1-7:NoSchedule",)),
        ([], ()),
    ],
)
def test_a_node_for_one_pod_is_closed_to_others_from_the_start(words: list[str], taints: tuple[str, ...]) -> None:
    """Also to those of DaemonSets, which go onto nodes that are only cordoned."""
    asked = launch._parser().parse_args([*WORDS, *words])
    assert joining.taints(asked.pod, asked.known_as) == taints


def test_a_long_name_is_still_a_value_of_a_taint() -> None:
    for length in range(55, 75):
        (taint,) = joining.taints(None, f"{'n' * length}.example.org-1234567")
        value = taint.removeprefix("pinnace.dev/pod=").removesuffix(":NoSchedule")
        assert len(value) <= 63
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", value)
        assert value.endswith("-1234567")
