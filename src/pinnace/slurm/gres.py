"""Generic resources of a job, as `scontrol --details show job` lists them for each host.

Nodes=n2 CPU_IDs=0-1 Mem=3072 GRES=gpu:tesla:2(IDX:0-1),fpga:1(CNT:1)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_HOST = re.compile(r"^\s*Nodes=(\S+) .*?\bGRES=(\S*)", re.MULTILINE)
_ENTRY = re.compile(r"([^:,()]+)(?::([^:,()]+))?:(\d+)(?:\(([^)]*)\))?")


@dataclass(frozen=True, kw_only=True)
class AllocatedGres:
    """Of one name and type on one host. ``indexes`` are its devices, in the order of gres.conf; a count has none."""

    name: str
    type: str
    count: int
    indexes: tuple[int, ...] = ()


def parse_gres(details: str, host: str, hostnames: Callable[[str], list[str]]) -> list[AllocatedGres]:
    """What a job has on a host. ``hostnames`` expands Slurm's short form of a list of hosts."""
    for nodes, text in _HOST.findall(details):
        if nodes == host or ("[" in nodes and host in hostnames(nodes)):
            return [_entry(*found) for found in _ENTRY.findall(text)]
    return []


def _entry(name: str, kind: str, count: str, about: str) -> AllocatedGres:
    indexes = about.removeprefix("IDX:") if about.startswith("IDX:") else ""
    return AllocatedGres(name=name, type=kind, count=int(count), indexes=parse_indexes(indexes))


def parse_indexes(text: str) -> tuple[int, ...]:
    """``0-1,4`` as numbers."""
    ranges = [part.partition("-") for part in text.split(",") if part and part != "N/A"]
    return tuple(n for first, _, last in ranges for n in range(int(first), int(last or first) + 1))
