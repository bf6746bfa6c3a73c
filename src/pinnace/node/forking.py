"""Processes that are forked, do one thing, and end with their parent, however that ends; and how it hears of their end.

Apart from the supervisor, because the process that makes certificates is forked before anything else is loaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAKEUPS = 4096  # bytes of the wake-up pipe that are read at once
SLURM_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # for the agent, though Slurm may send them to all


def wake_on_signals() -> int:
    """A descriptor that is readable when a signal has come, such as that a child has ended: for a loop that polls."""
    wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Block the signals that interrupt: none comes between what is made and its name, or its record."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SLURM_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ended_children() -> Iterator[tuple[int, int]]:
    """The pid and status of every child that has ended by now."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def fork(work: Callable[[], None]) -> int:
    """Run a function in a process of its own; gives its pid. It ends with exit code 1 if the function raises."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for number in SLURM_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            die_with_parent(signal.SIGKILL)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of ours may run on in a forked process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid
