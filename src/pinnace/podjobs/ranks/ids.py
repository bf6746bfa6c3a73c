"""As whom ranks run: with the rights of the process that asked for them, under the user's own number.

PMIx, through which ranks find each other, lets in who says the number of the user that the job belongs to. In the node
that user is root, and a container may run as yet another. So worlds have a user namespace in which the two numbers are
exchanged. Ranks of a host share it; otherwise the kernel would not let them read each other's memory.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Of a process, in the numbers of the node. ``capabilities`` is the mask of those that it can ever have."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    umask: int = 0o022
    capabilities: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Identity:
        return Identity(**data | {"groups": tuple(data["groups"])})


def node_id(outside: int, id_map: str) -> int:
    """An identity of the host's as the node calls it, by the node's uid_map or gid_map; see user_namespaces(7)."""
    for inside, begin, count in (map(int, line.split()) for line in id_map.splitlines()):
        if begin <= outside < begin + count:
            return inside + outside - begin
    raise ValueError(f"the node does not know the identity {outside}")


def identity(status: str, uid_map: str, gid_map: str) -> Identity:
    """Of a process, from its /proc/PID/status as it is read on the host."""
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in status.split("\n"))}
    known = []
    for group in map(int, fields["Groups"]):
        try:
            known.append(node_id(group, gid_map))
        except ValueError:  # a group of the user's outside; where there is one identity, it cannot be dropped
            continue
    return Identity(
        uid=node_id(int(fields["Uid"][1]), uid_map),
        gid=node_id(int(fields["Gid"][1]), gid_map),
        groups=tuple(known),
        umask=int(fields["Umask"][0], 8),
        capabilities=int(fields["CapBnd"][0], 16),
    )


def exchange(number: int, own: int, asked: int) -> int:
    """What a world calls an identity of the node."""
    return {own: asked, asked: own}.get(number, number)


def exchanged(own: int, asked: int, last: int) -> str:
    """The map of a world's ids to the node's 0 to ``last``, in which ``asked`` is called ``own``, and the reverse.

    No piece spans the node's root and its other users, which are apart on the host.
    """
    pieces = [(own, asked, 1)]
    if own <= last and own != asked:
        pieces.append((asked, own, 1))
    bounds = [0, 1, *(bound for cut in sorted({own, asked}) for bound in (cut, cut + 1)), last + 1]
    for begin, end in itertools.pairwise(sorted({bound for bound in bounds if bound <= last + 1})):
        if begin not in {own, asked}:
            pieces.append((begin, begin, end - begin))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in pieces)
