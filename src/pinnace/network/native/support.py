"""Whether a host can have native sockets."""

from __future__ import annotations

import os
import platform
import socket

from pinnace.c_library import LibraryError
from pinnace.network.native import library

SO_NETNS_COOKIE = 71
MACHINES = {"x86_64", "aarch64"}  # whose system calls sockets/notify.c knows


def missing() -> str:
    """What there lacks; empty if nothing."""
    if platform.machine() not in MACHINES:
        return f"there are none for {platform.machine()}"
    try:
        with socket.socket() as sock:
            sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
    except OSError:
        return f"they need Linux 5.14 or newer, and this host has {os.uname().release}"
    try:
        library.load()
    except LibraryError as error:
        return str(error)
    return ""
