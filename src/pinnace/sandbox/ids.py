"""User and group IDs of user namespaces (see user_namespaces(7)): the subordinate ranges, and the IDs of a map."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

SUBUID, SUBGID = "/etc/subuid", "/etc/subgid"
GETSUBIDS = {SUBUID: ["getsubids"], SUBGID: ["getsubids", "-g"]}
GETSUBIDS_LIMIT = 10.0  # seconds; it may ask a server
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


def parse_getsubids(text: str) -> tuple[int, int] | None:
    """The first range of what getsubids(1) prints: ``0: alice 100000 65536``."""
    found = re.search(r"^0: \S+ (\d+) (\d+)$", text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def ids_of_directory_service(file: str, user: str) -> tuple[int, int] | None:
    """The first range that the site's directory service has in place of a file (``subid`` in nsswitch.conf)."""
    argv = [*GETSUBIDS[file], user]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=GETSUBIDS_LIMIT)
        return parse_getsubids(result.stdout)
    return None


def contains(id_map: str, ids: tuple[int, int]) -> bool:
    """Whether a user namespace has a range of ids, by the text of its uid_map or gid_map."""
    rows = [[int(field) for field in line.split()] for line in id_map.splitlines()]
    return any(inside <= ids[0] and sum(ids) <= inside + count for inside, _, count in rows)


def subordinate_ranges() -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The ranges of users and groups that the site gives this user; None if there is only the user's own ID.

    A job may already be in a user namespace, which need not have these ids.
    """
    uid = os.getuid()
    user = str(uid)
    with contextlib.suppress(KeyError):  # a user whom this host does not know by name
        user = pwd.getpwuid(uid).pw_name
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        return None
    uids, gids = (subordinate_ids(file, user, uid) or ids_of_directory_service(file, user) for file in (SUBUID, SUBGID))
    if not uids or not gids:
        return None
    here = (Path("/proc/self/uid_map"), uids), (Path("/proc/self/gid_map"), gids)
    return (uids, gids) if all(contains(file.read_text(), wanted) for file, wanted in here) else None


def last_id(id_map: str) -> int:
    """The highest ID of a user namespace, from the text of /proc/self/uid_map or gid_map."""
    return max(int(inside) + int(count) for inside, _, count in map(str.split, id_map.splitlines())) - 1
