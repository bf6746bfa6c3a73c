"""The credentials of ranks: the rights of the process that requested them, under the user's own ID.

PMIx, through which ranks find each other, accepts processes with the UID of the job's owner. In the node that user is
root, and a container may run as yet another. So worlds have a user namespace in which the two IDs are swapped. The
ranks of a host share it; otherwise the kernel would not let them read each other's memory.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ProcessCredentials:
    """Credentials of a process, in the IDs of the node. ``capabilities`` is its bounding set.

    ``users_groups``: it has the user's supplementary groups, which the node does not know; ``groups`` are those that it
    knows.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    users_groups: bool = False
    umask: int = 0o022
    capabilities: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ProcessCredentials:
        return ProcessCredentials(**data | {"groups": tuple(data["groups"])})


def node_id(outside: int, id_map: str) -> int:
    """An ID of the host as an ID of the node, by the node's uid_map or gid_map; see user_namespaces(7)."""
    for inside, begin, count in (map(int, line.split()) for line in id_map.splitlines()):
        if begin <= outside < begin + count:
            return inside + outside - begin
    raise ValueError(f"the node does not know the identity {outside}")


def credentials_of(status: str, uid_map: str, gid_map: str) -> ProcessCredentials:
    """The credentials of a process, from its /proc/PID/status as read on the host."""
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in status.split("\n"))}
    known, users_groups = [], False
    for group in map(int, fields["Groups"]):
        try:
            known.append(node_id(group, gid_map))
        except ValueError:
            users_groups = True  # all of them: it has never called setgroups(2), which could not have named this one
    return ProcessCredentials(
        uid=node_id(int(fields["Uid"][1]), uid_map),
        gid=node_id(int(fields["Gid"][1]), gid_map),
        groups=tuple(known),
        users_groups=users_groups,
        umask=int(fields["Umask"][0], 8),
        capabilities=int(fields["CapBnd"][0], 16),
    )


def swap_id(number: int, own: int, asked: int) -> int:
    """The ID in a world of an ID of the node."""
    return {own: asked, asked: own}.get(number, number)


def swapped_id_map(own: int, asked: int, last: int) -> str:
    """The map of a world's IDs to the node's 0 to ``last``, in which ``own`` and ``asked`` are swapped.

    No range spans the node's root and its other users, which are not contiguous on the host.
    """
    ranges = [(own, asked, 1)]
    if own <= last and own != asked:
        ranges.append((asked, own, 1))
    bounds = [0, 1, *(bound for cut in sorted({own, asked}) for bound in (cut, cut + 1)), last + 1]
    for begin, end in itertools.pairwise(sorted({bound for bound in bounds if bound <= last + 1})):
        if begin not in {own, asked}:
            ranges.append((begin, begin, end - begin))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in ranges)
