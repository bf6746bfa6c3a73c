"""The end of a job's time, seen in advance: a cluster ends in order before Slurm would kill it.

Slurm's own warning (``--signal``) may come a minute too early, which is all the time that a short job has, and can tell
one process only for batch jobs. So the head looks at its job's clock itself, in whatever kind of job it runs. If it
cannot, Slurm's ``KillWait`` is what is left: half a minute, by default, between SIGTERM and SIGKILL.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pinnace.errors import SlurmError
from pinnace.slurm.commands import Slurm
from pinnace.slurm.times import parse_span

if TYPE_CHECKING:
    from pinnace.slurm.commands import Job

FIRST_LOOK = 10.0  # seconds; while a cluster starts, there is more to do
LONGEST = 600.0  # seconds between looks: the limit of a job can be changed
AGAIN = 60.0  # seconds until Slurm is asked again, if it did not answer


def grace(limit: int) -> int:
    """How many seconds before the limit the end begins. A drain takes 25 at most; short jobs have little to give."""
    return max(15, min(60, limit // 4))


def until_end(job: Job) -> float | None:
    """Seconds until the end has to begin; None if the job has no limit."""
    left, limit = parse_span(job.time_left), parse_span(job.time_limit)
    return None if left is None or limit is None else float(left - grace(limit))


def wait_for_end(number: int) -> str | None:
    """Return when a job's time is nearly over, with the limit; None if it has none."""
    time.sleep(FIRST_LOOK)
    while True:
        try:
            jobs = Slurm().squeue(number)
        except SlurmError:
            time.sleep(AGAIN)
            continue
        left = until_end(jobs[0]) if jobs else None
        if left is None:
            return None
        if left <= 0:
            return jobs[0].time_limit
        time.sleep(min(left, LONGEST))
