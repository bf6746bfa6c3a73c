"""Lets an idle control plane rest.

Its components look a thousand times a second whether there is something to do. Nobody waits for that: requests and
watches wake them by themselves. While they are idle, the kernel may be late with their timers by IDLE_SLACK, and wakes
them for several at once (timerslack in prctl(2)); that takes two thirds of their CPU time away. While they work, Go's
scheduler needs its timers, and they have the kernel's usual slack.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from pinnace.node.processes import TICKS

PROC = Path("/proc")
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "metrics-server")
NAME_LENGTH = 15  # bytes of a process's name that the kernel keeps
IDLE_SLACK, USUAL_SLACK = 100_000_000, 50_000  # nanoseconds
LOOK_INTERVAL = 2.0  # seconds
BUSY = 0.10  # of one CPU, all components together; idle, they take less than half of it


def serve(pause: float = LOOK_INTERVAL) -> None:
    """For ever; or not at all where the kernel does not let us (before Linux 5.1 that takes the host's root)."""
    before: dict[int, int] = {}
    slack: dict[int, int] = {}  # as it was set
    with contextlib.suppress(PermissionError, FileNotFoundError):
        while True:
            ticks = {pid: cpu_ticks(pid) for pid in components()}
            wanted = slack_for(before, ticks, pause)
            for pid in ticks:
                if slack.get(pid, USUAL_SLACK) != wanted:
                    set_slack(pid, wanted)
            before, slack = ticks, dict.fromkeys(ticks, wanted)
            time.sleep(pause)


def slack_for(before: dict[int, int], after: dict[int, int], seconds: float) -> int:
    """By the CPU time of processes at two moments. One that has just been started is busy."""
    spent = sum(ticks - before.get(pid, -TICKS) for pid, ticks in after.items()) / TICKS
    return USUAL_SLACK if spent > BUSY * seconds else IDLE_SLACK


def components() -> list[int]:
    """Those that are children of init, as all services are. FileNotFoundError if the kernel does not tell."""
    names = {name[:NAME_LENGTH] for name in COMPONENTS}
    children = map(int, (PROC / "1/task/1/children").read_text().split())
    return [pid for pid in children if _read(f"{pid}/comm").strip() in names]


def cpu_ticks(pid: int) -> int:
    """What a process has used so far; none if it has ended."""
    fields = _read(f"{pid}/stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def set_slack(pid: int, nanoseconds: int) -> None:
    """Of all threads. Those that they make later inherit it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                (PROC / thread.name / "timerslack_ns").write_text(str(nanoseconds))


def _read(path: str) -> str:
    try:
        return (PROC / path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
