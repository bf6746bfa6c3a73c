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
from pinnace.slurm.times import parse_duration

if TYPE_CHECKING:
    from pinnace.slurm.jobs import QueuedJob

SQUEUE_DELAY = 10.0  # seconds until Slurm is asked first; while a cluster starts, there is more to do
SQUEUE_INTERVAL = 600.0  # seconds between questions at most: the limit of a job can be changed
SQUEUE_RETRY = 60.0  # seconds until Slurm is asked again, if it did not answer


def grace(limit: int) -> int:
    """How many seconds before the limit the end begins. A drain takes 25 at most; short jobs have little to give."""
    return max(15, min(60, limit // 4))


def until_end(job: QueuedJob) -> float | None:
    """Seconds until the end has to begin; None if the job has no limit."""
    left, limit = parse_duration(job.time_left), parse_duration(job.time_limit)
    return None if left is None or limit is None else left - grace(int(limit))


def wait_for_end(number: int) -> str | None:
    """Return when a job's time is nearly over, with the limit; None if it has none."""
    time.sleep(SQUEUE_DELAY)
    while True:
        try:
            jobs = Slurm().squeue(number)
        except SlurmError:
            time.sleep(SQUEUE_RETRY)
            continue
        left = until_end(jobs[0]) if jobs else None
        if left is None:
            return None
        if left <= 0:
            return jobs[0].time_limit
        time.sleep(min(left, SQUEUE_INTERVAL))
