"""Lets a kubelet see its pods a second earlier.

A kubelet begins to watch its pods when it has seen its node's list, and looks once a second whether it has. The first
look comes microseconds after the list was asked for, and is always in vain. Between the two it writes two lines to its
log. Here the log is a pipe that holds a single line, and whoever reads it takes the second line a moment later: until
then the kubelet's main routine waits, while the list arrives. It finds it at the first look.

If a kubelet writes other lines one day, nothing is lost but that second.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from typing import TYPE_CHECKING

from pinnace.node.linux import die_with_parent

if TYPE_CHECKING:
    from pathlib import Path

ASKED = b"Attempting to sync node with API server"
MOMENT = 0.1  # seconds; the answer takes ten to thirty milliseconds
WIDE = 1 << 20  # bytes that the pipe holds afterwards


def paced(log: Path) -> int:
    """A descriptor to write to. In packet mode every line is a buffer of the pipe, of which there is one."""
    readable, writable = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, os.sysconf("SC_PAGE_SIZE"))
    if os.fork() == 0:
        try:
            die_with_parent(signal.SIGKILL)
            os.close(writable)
            _copy(readable, log)
        finally:
            os._exit(1)
    os.close(readable)
    return writable


def _copy(readable: int, log: Path) -> None:
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while line := os.read(readable, 1 << 16):
        os.write(target, line)
        if ASKED in line:
            time.sleep(MOMENT)
            break
    with contextlib.suppress(OSError):  # more than the site lets users have
        fcntl.fcntl(readable, fcntl.F_SETPIPE_SZ, WIDE)
    os.dup2(readable, 0)
    os.dup2(target, 1)
    os.execvp("cat", ["cat"])  # noqa: S606 - smaller than Python
