"""The sizes that a cluster is brought to, as the user writes them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from pinnace.bench.growth.load import PROBE_PODS
from pinnace.bench.growth.objects import NODE_PODS

__all__ = ["DEFAULT_SIZES", "NodesAndPods", "parse_sizes"]

DEFAULT_SIZES = "10:100,100:1000,500:5000"


class NodesAndPods(NamedTuple):
    """Simulated nodes, and the pods on all of them together."""

    nodes: int
    pods: int

    def __str__(self) -> str:
        return f"{self.nodes}:{self.pods}"


def parse_sizes(text: str) -> tuple[NodesAndPods, ...]:
    """``10:100,100:1000`` is 10 nodes with 100 pods, and then 100 with 1,000. ValueError says what is wrong."""
    sizes = tuple(_parse_size(word) for word in text.split(",") if word.strip())
    if not sizes:
        raise ValueError("there is no size, such as 100:1000")
    for before, after in pairwise(sizes):
        if after.nodes < before.nodes or after.pods <= before.pods:
            raise ValueError(f"a cluster only grows, and {after} comes after {before}")
    for size in sizes:
        if size.pods + PROBE_PODS > size.nodes * NODE_PODS:
            raise ValueError(
                f"{size} does not fit: a node takes {NODE_PODS} pods, and {PROBE_PODS} more are created to be timed"
            )
    return sizes


def _parse_size(word: str) -> NodesAndPods:
    nodes, _, pods = word.strip().partition(":")
    if not (nodes.isdecimal() and pods.isdecimal() and int(nodes) and int(pods)):
        raise ValueError(f"{word.strip()!r} is no size: nodes and pods, such as 100:1000")
    return NodesAndPods(int(nodes), int(pods))
