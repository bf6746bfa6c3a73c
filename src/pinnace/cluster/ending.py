"""Ending a cluster in order: its head, its jobs, its files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from pinnace.cluster import tunnel_start
from pinnace.cluster.cluster_job import has_ended
from pinnace.cluster.reaching import request_stop
from pinnace.errors import ClusterError, SlurmError
from pinnace.podjobs.submission import claimed
from pinnace.sandbox.namespaces import as_root
from pinnace.spec import ClusterSpec
from pinnace.storage.directories import Directories

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.cluster.cluster_job import ClusterJob

END_LIMIT = 60.0  # seconds; draining the nodes takes 25 at most
PROCESS_POLL_INTERVAL = 0.05  # seconds
JOB_POLL_INTERVAL = 0.1  # seconds
CANCEL_INTERVAL = 0.2  # seconds


def end(job: ClusterJob) -> None:
    """Ask the head to end the cluster in order; where it cannot be asked, Slurm or the kernel ends it."""
    asked = request_stop(job.directory) if (job.directory.path / "cluster.json").exists() else False
    record = job.directory.job_record
    if job.process is not None:
        _end_process(job.process, asked=asked)
    elif record and record.job is not None:
        _end_job(job, record.job, asked=asked)
    elif record and record.alive and record.pid is not None:
        if not asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGTERM)
        deadline = time.monotonic() + END_LIMIT
        while record.alive and time.monotonic() < deadline:
            time.sleep(PROCESS_POLL_INTERVAL)


def _end_process(process: subprocess.Popen[bytes], *, asked: bool) -> None:
    if not asked:
        process.terminate()
    try:
        process.wait(END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_job(job: ClusterJob, number: int, *, asked: bool) -> None:
    """Wait for a job whose cluster was asked to end; cancel it otherwise, if it still is the cluster's."""
    if asked and _wait_job_ended(job, number):
        return
    if job.slurm.cancel(number, ours=job.is_ours) and not _wait_job_ended(job, number):
        raise SlurmError(f"job {number} does not end", hint=f"See `squeue -j {number}`.")


def _wait_job_ended(job: ClusterJob, number: int) -> bool:
    """Wait for a job's end. Whether it came."""
    deadline = time.monotonic() + END_LIMIT
    while time.monotonic() < deadline:
        if has_ended(job.find_number(number)):
            return True
        time.sleep(JOB_POLL_INTERVAL)
    return False


def cancel_pod_jobs(job: ClusterJob) -> None:
    """Cancel the jobs that the provisioner has submitted. Nodes that run see that their head is gone; others wait."""
    if not job.directory.has_jobs:
        return
    name, slurm = job.directory.name, job.slurm
    deadline = time.monotonic() + END_LIMIT
    cancelled: set[int] = set()
    while time.monotonic() < deadline:
        alive = [other.id for other in slurm.squeue() if claimed(other.comment, name) and not has_ended(other)]
        if not alive:
            return
        for number in set(alive) - cancelled:
            slurm.cancel(number, ours=lambda comment: claimed(comment, name) is not None)
            cancelled.add(number)
        time.sleep(CANCEL_INTERVAL)
    raise SlurmError(f"jobs of the cluster {name} do not end", hint="See `squeue --me`.")


def remove_volumes(directory: Path) -> Path | None:
    """Remove the volumes that end with the cluster. Where they are, if some cannot be removed.

    The head has done so, unless it was killed. Files of the pods' users only root of their namespace can remove.
    """
    volumes = Directories(ClusterSpec.volumes_of(directory))
    return None if volumes.end() or as_root(volumes.end) else volumes.root


def remove(job: ClusterJob, *, retain: bool) -> None:
    """Remove the volumes of a cluster that has ended, and its directory unless that is to be retained."""
    path = job.directory.path.resolve()
    if not retain:
        tunnel_start.end(job.directory.path)
        job.directory.remove()
    if left := remove_volumes(path):
        raise ClusterError(
            f"volumes of the cluster {job.directory.name} are left in {left}",
            hint="Remove them with `unshare --map-auto --map-root-user rm -r` where you have subordinate ids.",
        )
