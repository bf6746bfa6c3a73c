"""Processes that are forked, do one thing, and end with their parent, however that ends.

Apart from the supervisor, because the process that makes certificates is forked before anything else is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

SLURM_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # for the agent, though Slurm may send them to all


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
