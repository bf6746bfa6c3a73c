"""Enters the user and mount namespaces of another process of ours, never its network namespace."""

from __future__ import annotations

import os

from pinnace.sandbox.linux import CLONE_NEWNS, CLONE_NEWUSER, setns


def enter(pid: int) -> bool:
    """Enter the user and mount namespaces of a process. The creator of a user namespace has all rights in it.

    Returns whether the user namespace maps more than one user.
    """
    names = {"user": CLONE_NEWUSER, "mnt": CLONE_NEWNS}
    with open(f"/proc/{pid}/gid_map") as mapped:  # noqa: PTH123
        many = len(mapped.readlines()) > 1
    opened = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind) for name, kind in names.items()]
    for descriptor, kind in opened:
        setns(descriptor, kind)
        os.close(descriptor)
    return many


def become_root_of(pid: int) -> None:
    """Enter the namespaces of a node's process as root, and drop our groups on the host where that is allowed."""
    if enter(pid):
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def first_process(monitor: int) -> int:
    """The PID on the host of the node's PID 1: the child of its monitor that is first in a PID namespace."""
    with open(f"/proc/{monitor}/task/{monitor}/children") as children:  # noqa: PTH123
        for child in map(int, children.read().split()):
            with open(f"/proc/{child}/status") as status:  # noqa: PTH123
                pids = next(line.split()[1:] for line in status if line.startswith("NSpid:"))
            if len(pids) > 1 and pids[-1] == "1":
                return child
    raise ProcessLookupError("the node has no first process")
