"""User and group IDs of user namespaces (see user_namespaces(7)): the subordinate ranges, and the IDs of a map."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil

SUBUID, SUBGID = "/etc/subuid", "/etc/subgid"
MAX_IDS = 65536  # that we map of a subordinate range


def subordinate_ids(file: str, user: str, uid: int) -> tuple[int, int] | None:
    """The first range of a user in /etc/subuid or /etc/subgid: its first ID and the number of IDs."""
    with contextlib.suppress(FileNotFoundError), open(file) as lines:  # noqa: PTH123
        for line in lines:
            name, _, rest = line.strip().partition(":")
            if name in {user, str(uid)} and rest:
                begin, _, count = rest.partition(":")
                return int(begin), int(count)
    return None


def subordinate_ranges() -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The ranges of users and groups that the site gives this user; None if there is only the user's own ID."""
    uid = os.getuid()
    user = pwd.getpwuid(uid).pw_name
    uids, gids = subordinate_ids(SUBUID, user, uid), subordinate_ids(SUBGID, user, uid)
    tools = shutil.which("newuidmap") and shutil.which("newgidmap")
    return (uids, gids) if uids and gids and tools else None


def last_id(id_map: str) -> int:
    """The highest ID of a user namespace, from the text of /proc/self/uid_map or gid_map."""
    return max(int(inside) + int(count) for inside, _, count in map(str.split, id_map.splitlines())) - 1
