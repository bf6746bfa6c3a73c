"""Partitions, and what sinfo says of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinnace.errors import SlurmError
from pinnace.slurm.times import parse_limit

SINFO = "%R|%D|%c|%m|%l|%f|%a"
NODES = "%N|%c|%m|%G|%T"
USABLE = ("idle", "mixed", "allocated", "completing")
# Also of nodes with jobs that complete (+), that are planned for another job (-), power up (#), or are powered down (~)
# until a job wants them. Not of those that do not respond (*), are reserved ($), power down (!, %) or reboot (@, ^).
NODE_STATE = re.compile(rf"({'|'.join(USABLE)})(\+?[-#~]?)")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition: what its nodes have at least, what they have in all, their features."""

    name: str
    nodes: int
    cpus: int
    memory: int  # MiB
    minutes: int | None
    features: tuple[str, ...] = ()
    up: bool = True


def parse_sinfo(text: str) -> list[Partition]:
    """What sinfo printed in this format: a line for each kind of nodes in each partition."""
    found: dict[str, Partition] = {}
    for line in filter(None, text.split("\n")):
        name, nodes, cpus, memory, limit, features, state = line.split("|")
        known = found.get(name)
        mine = tuple(feature for feature in features.split(",") if feature not in {"(null)", ""})
        found[name] = Partition(
            name=name,
            nodes=int(nodes) + (known.nodes if known else 0),
            cpus=min(int(cpus), known.cpus) if known else int(cpus),
            memory=min(int(memory), known.memory) if known else int(memory),
            minutes=None if limit == "infinite" else parse_limit(limit),
            features=tuple(sorted({*mine, *(known.features if known else ())})),
            up=state == "up",
        )
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class NodeClass:
    """Nodes of a partition that are alike. ``usable`` are those of them to which Slurm gives jobs, idle ones first."""

    nodes: tuple[str, ...]
    usable: tuple[str, ...]
    cpus: int
    memory: int  # MiB
    gres: str = ""

    @property
    def count(self) -> int:
        return len(self.nodes)

    @property
    def names(self) -> str:
        """A few of them, for a table."""
        shown = ", ".join(self.nodes[:4])
        return f"{shown}, … ({self.count})" if self.count > 4 else shown


def parse_node_classes(text: str) -> list[NodeClass]:
    """What sinfo printed in the format ``NODES``: a line for each node."""
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for line in filter(None, text.split("\n")):
        name, cpus, memory, gres, state = line.split("|")
        plain = re.sub(r"\(S:[^)]*\)", "", gres)  # to which sockets they belong
        alike = found.setdefault((cpus, memory.rstrip("+"), "" if plain == "(null)" else plain), [])
        if name not in {known for known, _ in alike}:
            alike.append((name, state))
    return [
        NodeClass(
            nodes=tuple(name for name, _ in alike),
            usable=_usable(alike),
            cpus=int(cpus),
            memory=int(memory),
            gres=gres,
        )
        for (cpus, memory, gres), alike in found.items()
    ]


def _usable(nodes: list[tuple[str, str]]) -> tuple[str, ...]:
    """Of names and states, the names of those to which Slurm gives jobs: in the order of ``USABLE``, unmarked first."""
    found = [(NODE_STATE.fullmatch(state), name) for name, state in nodes]
    ranked = [(USABLE.index(state[1]), bool(state[2]), name) for state, name in found if state]
    return tuple(name for *_, name in sorted(ranked, key=lambda one: one[:2]))


def largest_node(text: str, *, of_default: bool) -> dict[str, int]:
    """The CPUs and the memory (in MiB) that most nodes have at least, from lines of ``%P %c %m``."""
    rows = [line.split() for line in text.split("\n") if line.strip()]
    own = [row for row in rows if not of_default or row[0].endswith("*")] or rows
    if not own:
        raise SlurmError("sinfo shows no node")
    cpus, memory = (sorted(int(row[n].rstrip("+")) for row in own)[(len(own) - 1) // 2] for n in (1, 2))
    return {"cpus": cpus, "memory": memory}
