"""Finding the processes of a bed whose state file is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.state import Directories

__all__ = ["is_init", "kill_inits"]


def is_init(cmdline: bytes, state: Path) -> bool:
    """Is this /proc/PID/cmdline that of a first process, of a host of this bed?"""
    arguments = cmdline.split(b"\0")
    return b"testbed.init" in arguments and os.fsencode(state) in arguments


def kill_inits(directories: Directories) -> None:
    """Also those that a killed ``up`` had only just started, and that are in no cgroup yet."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            pidfd = os.pidfd_open(int(process.name))
        except OSError:
            continue
        try:
            if is_init((process / "cmdline").read_bytes(), directories.state):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os.close(pidfd)
