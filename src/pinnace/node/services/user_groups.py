"""Which containers keep the user's supplementary groups: those of pods that ask for no groups of their own.

A process has either the user's groups, which are not mapped in the node, or groups that it names (see
``sandbox.keeping_groups``). In a bundle containerd has put three kinds of groups together: what the pod asks for
(``fsGroup``, ``supplementalGroups``), what the image's /etc/group gives to the container's user, and the primary group.
What remains without the last two was asked for.

The decision is made when a container is created, and holds for all that is executed in it later: a file beside its
bundle tells the wrapper around runc.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from pinnace.podjobs.ranks.world import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANNOTATION = "pinnace.dev/user-groups"  # of a pod: "false" to have the groups of its image instead
MARK = "keeps-groups"  # the file beside a bundle
MAX_SIZE = 1 << 20  # bytes that are read of an image's /etc/passwd and /etc/group


def keeps_groups(config: dict[str, Any], root: Path) -> bool:
    """Whether the container of a bundle has the user's groups. ``root`` is its root, as an image has it."""
    about = config.get("annotations", {})
    if about.get("io.kubernetes.cri.container-type") != "container" or about.get(ANNOTATION, "true").lower() == "false":
        return False
    user = config["process"]["user"]
    return not requested_groups(user, read_in(root, "/etc/passwd"), read_in(root, "/etc/group"))


def requested_groups(user: dict[str, Any], passwd: str, group: str) -> set[int]:
    """The groups that a pod has asked for, from the ``user`` of a bundle's process and two files of its image."""
    names = {name for name, uid, *_ in _fields(passwd) if uid == str(user["uid"])}
    given = {
        int(gid) for _, gid, *rest in _fields(group) if names & set("".join(rest[:1]).split(",")) and gid.isdigit()
    }
    return {*user.get("additionalGids", ())} - given - {user["gid"]}


def _fields(text: str) -> Iterator[tuple[str, ...]]:
    """The lines of a file like passwd(5) and group(5): the name, the ID, and what follows."""
    for line in text.splitlines():
        name, *rest = line.strip().split(":")
        if len(rest) > 1:
            yield name, *rest[1:]


def read_in(root: Path, path: str) -> str:
    """A file of an image, of which nothing is known: empty unless it is a file, and cut where it is too long."""
    try:
        descriptor = os.open(resolve(str(root), path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, MAX_SIZE).decode(errors="replace") if is_file else ""
    finally:
        os.close(descriptor)
