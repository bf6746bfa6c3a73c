"""Users and groups of a user namespace (see user_namespaces(7)): those that the site lets us map, and those in one."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil

SUBUID, SUBGID = "/etc/subuid", "/etc/subgid"
IDS = 65536


def subordinate_ids(file: str, user: str, uid: int) -> tuple[int, int] | None:
    """The first range of a user in /etc/subuid or /etc/subgid: where it begins and how many there are."""
    with contextlib.suppress(FileNotFoundError), open(file) as lines:  # noqa: PTH123
        for line in lines:
            name, _, rest = line.strip().partition(":")
            if name in {user, str(uid)} and rest:
                begin, _, count = rest.partition(":")
                return int(begin), int(count)
    return None


def given_ids() -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The ranges of users and groups that the site lets us use; None if we have to do with one identity."""
    uid = os.getuid()
    user = pwd.getpwuid(uid).pw_name
    uids, gids = subordinate_ids(SUBUID, user, uid), subordinate_ids(SUBGID, user, uid)
    tools = shutil.which("newuidmap") and shutil.which("newgidmap")
    return (uids, gids) if uids and gids and tools else None


def last_id(id_map: str) -> int:
    """The highest identity of a user namespace, from /proc/self/gid_map."""
    return max(int(inside) + int(count) for inside, _, count in map(str.split, id_map.splitlines())) - 1
