"""Lets a kubelet start beside containerd, and see its pods a second earlier.

A kubelet that writes its log into a full pipe waits until somebody reads it. That is used twice.

It needs a tenth of a second before it first writes, so it may start before there is a containerd that it could ask, a
certificate, or a way to the API; it is not read until there are all of them.

It begins to watch its pods when it has seen its node's list, and looks once a second whether it has. The first look
comes microseconds after the list was asked for, and is always in vain. Between the two it writes two lines. The pipe
holds a single one by then, and whoever reads takes the second a moment later: while the kubelet's main routine waits,
the list arrives. It finds it at the first look.

If a kubelet writes other lines one day, nothing is lost but that second.

The controller-manager, too, starts before it can go on (``held``): it would ask once a second whether it can. So does
containerd, which is loaded while the node's network is made and the images of earlier clusters are looked at.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

LIST_SOON = b"Kubelet version"  # the list is asked for some twenty lines later
LIST_REQUESTED = b"Attempting to sync node with API server"
LIST_WAIT = 0.06  # seconds of an idle machine; the answer takes ten to twenty milliseconds
LIST_LIMIT = 0.3  # seconds of a busy one
LIST_INTERVAL = 0.01  # seconds between looks how busy it is
READY_INTERVAL = 0.005  # seconds
ONE_LINE_PIPE = os.sysconf("SC_PAGE_SIZE")  # bytes of a pipe that holds one line
WIDE_PIPE = 1 << 20


def paced(log: Path, ready: Callable[[], bool], under_way: Path) -> int:
    """A descriptor to write to. In packet mode every line is a buffer of the pipe. ``under_way`` is made at the end."""
    return _unread(ready, lambda readable: _copy(readable, log, under_way))


def held(log: Path, ready: Callable[[], bool]) -> int:
    """A descriptor to write to, for another process that is to get no further than to its second line until then."""
    return _unread(ready, lambda readable: _pass_on(readable, _open_log(log)))


def _unread(ready: Callable[[], bool], read: Callable[[int], None]) -> int:
    """A pipe of one line. A process of its own begins to read it when what the writer needs is ready."""
    readable, writable = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    _resize(writable, ONE_LINE_PIPE)
    try:
        child = os.fork()
    except OSError:
        os.close(readable)
        os.close(writable)
        raise
    if child == 0:
        try:
            die_with_parent(signal.SIGKILL)
            os.close(writable)
            while not ready():
                time.sleep(READY_INTERVAL)
            read(readable)
        finally:
            os._exit(1)
    os.close(readable)
    return writable


def _copy(readable: int, log: Path, under_way: Path) -> None:
    """What it says of its options it may say at once."""
    target = _open_log(log)
    narrow, soon = not _resize(readable, WIDE_PIPE), False
    while line := os.read(readable, 1 << 16):
        os.write(target, line)
        soon = soon or LIST_SOON in line
        if soon and not narrow:
            narrow = _resize(readable, ONE_LINE_PIPE)  # as soon as there are no more lines in it
        if LIST_REQUESTED in line:
            _wait_for_list(Path("/proc/loadavg"))
            break
    under_way.touch()
    _pass_on(readable, target)


def _wait_for_list(loadavg: Path) -> None:
    """Wait LIST_WAIT; longer where processes share the processors, because the answer then takes longer, too."""
    deadline, left = time.monotonic() + LIST_LIMIT, LIST_WAIT
    while left > 0 and time.monotonic() < deadline:
        time.sleep(LIST_INTERVAL)
        left -= LIST_INTERVAL * processor_share(loadavg.read_text())


def processor_share(loadavg: str) -> float:
    """Which part of a processor each process has that wants one, by /proc/loadavg (see proc(5))."""
    running = int(loadavg.split()[3].partition("/")[0])
    return min(1.0, (os.cpu_count() or 1) / max(1, running))


def _open_log(log: Path) -> int:
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _pass_on(readable: int, target: int) -> None:
    """Copy the rest."""
    _resize(readable, WIDE_PIPE)
    os.dup2(readable, 0)
    os.dup2(target, 1)
    os.execvp("cat", ["cat"])  # noqa: S606 - smaller than Python


def _resize(pipe: int, size: int) -> bool:
    """Whether it could be done: a site may let users have less, and a full pipe is not made smaller."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
        return True
    return False
