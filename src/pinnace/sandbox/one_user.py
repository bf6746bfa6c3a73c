"""Nodes of users without subordinate IDs: a seccomp filter lets a single ID do for all.

Images have files of many owners, and containers switch to other users. In a user namespace with a single ID the kernel
refuses both. A seccomp filter, inherited by every process of the node, makes those system calls succeed without effect:
all files are the user's, and every process of every pod is root of the node, which is the user outside.
"""

from __future__ import annotations

from pinnace.sandbox.ignored_syscalls import NUMBERS, ignore


def ignore_id_changes() -> None:
    """Install the filter for this process and all that it starts."""
    ignore(NUMBERS["x86_64"])  # all calls that we know; other architectures have no more
