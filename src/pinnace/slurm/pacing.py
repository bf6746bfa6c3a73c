"""How often Slurm is asked for its queue: slurmctld serves all users of a site, one request after another."""

from __future__ import annotations

SQUEUE_INTERVAL = 1.0  # seconds between calls of squeue while something changes
IDLE_SQUEUE_INTERVAL = 15.0  # and while nothing does, or there is nothing to ask for
QUIET_SHARE = 0.1  # of the time for which nothing has changed, that may pass until the next change is noticed


def squeue_interval(quiet: float) -> float:
    """Seconds until the next call, where nothing has changed for ``quiet`` seconds."""
    return min(max(SQUEUE_INTERVAL, QUIET_SHARE * quiet), IDLE_SQUEUE_INTERVAL)
