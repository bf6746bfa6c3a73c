"""Processes beside the agent, which end with it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

from pinnace.node.linux import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable


def fork(work: Callable[[], None]) -> int:
    """Run something in a process of its own that ends with ours."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # for the agent, though Slurm may tell all
                signal.signal(number, signal.SIG_IGN)
            die_with_parent(signal.SIGKILL)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of ours may run on in a forked process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid
