"""Enters the namespaces of another process of ours, never its network namespace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    setns,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = {"user": CLONE_NEWUSER, "mnt": CLONE_NEWNS}  # the user namespace first: it gives the right to enter the others
ALL_BUT_NETWORK = FILES | {
    "pid": CLONE_NEWPID,
    "ipc": CLONE_NEWIPC,
    "uts": CLONE_NEWUTS,
    "cgroup": CLONE_NEWCGROUP,
}  # by their names in /proc/PID/ns


def enter(pid: int, namespaces: Mapping[str, int] = FILES) -> bool:
    """Enter namespaces of a process. The creator of a user namespace has all rights in it.

    Only processes that are forked later are in the PID namespace. Returns whether the user namespace maps more than one
    user.
    """
    with open(f"/proc/{pid}/gid_map") as mapped:  # noqa: PTH123
        many = len(mapped.readlines()) > 1
    opened = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind) for name, kind in namespaces.items()]
    for descriptor, kind in opened:
        setns(descriptor, kind)
        os.close(descriptor)
    return many


def enter_users(pid: int) -> None:
    """Enter the user namespace of a process alone: for the right to look at all processes in it, from the host."""
    enter(pid, {"user": CLONE_NEWUSER})


def become_root_of(pid: int, namespaces: Mapping[str, int] = FILES) -> bool:
    """Enter the namespaces of a node's process as root, with the user's groups (see ``keeping_groups``).

    Returns what ``enter`` does.
    """
    many = enter(pid, namespaces)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return many


def first_process(monitor: int) -> int:
    """The PID on the host of the node's PID 1: the child of its monitor that is first in a PID namespace."""
    with open(f"/proc/{monitor}/task/{monitor}/children") as children:  # noqa: PTH123
        for child in map(int, children.read().split()):
            with open(f"/proc/{child}/status") as status:  # noqa: PTH123
                pids = next(line.split()[1:] for line in status if line.startswith("NSpid:"))
            if len(pids) > 1 and pids[-1] == "1":
                return child
    raise ProcessLookupError("the node has no first process")
