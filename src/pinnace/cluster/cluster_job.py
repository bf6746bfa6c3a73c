"""The Slurm job, the job step or the local process that runs a cluster's agents, and what Slurm says of it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from pinnace.cluster import launching
from pinnace.cluster.job_record import ClusterJobRecord
from pinnace.errors import SlurmUnreachableError
from pinnace.node.forking import SLURM_SIGNALS, blocked_signals
from pinnace.sandbox.linux import die_with_parent
from pinnace.slurm.commands import Slurm
from pinnace.slurm.pacing import squeue_interval
from pinnace.slurm.variables import srun_environment
from pinnace.spec import agent_argv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.cluster.directory import Directory
    from pinnace.slurm.jobs import QueuedJob

JOB_STATE_LIMIT = 10.0  # seconds until Slurm has to show how a job ended
JOB_STATE_INTERVAL = 0.1  # seconds


class Place(StrEnum):
    """Where a cluster's nodes come from."""

    BATCH = "batch"  # a batch job of its own, which outlives the process that submits it
    INTERACTIVE = "interactive"  # a job of its own, which ends with the process that submits it
    ALLOCATION = "allocation"  # a step of the job that the calling process runs in
    LOCAL = "local"  # this machine, without Slurm


def has_ended(job: QueuedJob | None) -> bool:
    """Whether nothing of a job runs any more: Slurm has forgotten it, or shows a final state."""
    return job is None or job.state.has_ended


class ClusterJob:
    """What runs the agents of one cluster."""

    def __init__(self, directory: Directory, place: Place) -> None:
        self.directory = directory
        self.place = place
        self.slurm = Slurm()
        self.process: subprocess.Popen[bytes] | None = None  # srun or the agent, if this process started it
        self._begun = time.monotonic()
        self._asked = -math.inf  # when Slurm was asked last whether the job runs

    # --- launching ----------------------------------------------------------------------------------------------

    def launch(self, options: Sequence[str], *, nodes: int, retain: bool) -> None:
        """Start the agents, and record what runs them. Signals wait until that is recorded."""
        with blocked_signals():
            if self.place is Place.BATCH:
                script, given = self.script(options)
                record = ClusterJobRecord(job=self.slurm.sbatch(script, given), nodes=nodes, retain=retain)
            else:
                self.process = self._start_process(options)
                local = self.place is Place.LOCAL
                record = ClusterJobRecord.of_process(self.process.pid, nodes=nodes, local=local, retain=retain)
            self.directory.write_job_record(record)

    def _start_process(self, options: Sequence[str]) -> subprocess.Popen[bytes]:
        inside = self.place is Place.ALLOCATION
        with (self.directory.path / "logs" / "job.log").open("ab") as log:
            return subprocess.Popen(
                self.command(options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ) if inside else srun_environment(os.environ),
                cwd=self.directory.path,
                start_new_session=True,  # Ctrl-C does not reach it: the caller ends the cluster in order
                preexec_fn=_prepare_child,  # noqa: PLW1509 - there are no threads
            )

    def command(self, options: Sequence[str]) -> list[str]:
        """The argv that starts the agents of a cluster that ends with this process."""
        path = self.directory.path
        if self.place is Place.LOCAL:
            return agent_argv(path)
        if self.place is Place.ALLOCATION:
            return launching.step_argv(path, launching.inside_options(os.environ))
        name = self.directory.name
        own = [f"--job-name=pinnace-{name}", *options, f"--comment={launching.job_comment(name)}"]
        return launching.step_argv(path, own)

    def script(self, options: Sequence[str]) -> tuple[str, list[str]]:
        """The batch script, and the options that sbatch gets with it."""
        return launching.cluster_script(self.directory.name, self.directory.path, options)

    # --- what Slurm says ----------------------------------------------------------------------------------------

    @property
    def id(self) -> int | None:
        record, head = self.directory.job_record, self.directory.head
        return record.job if record and record.job else head.job if head else None

    def find(self) -> QueuedJob | None:
        """The Slurm job, if there is one and Slurm still knows it."""
        if self.place is Place.LOCAL:
            return None
        number = self.id
        if number is None:
            found = [job for job in self.slurm.squeue(certain=False) if self.is_ours(job.comment)]
            return max(found, key=lambda job: job.id, default=None)
        return self.find_number(number)

    def find_number(self, number: int) -> QueuedJob | None:
        """A job of our user, if Slurm knows it: numbers are given again, to anybody's jobs.

        Its comment proves that it is the cluster's own, where there is something to cancel. An allocation that a
        cluster was started in has none, nor have the jobs of sites that change comments.
        """
        return next((job for job in self.slurm.squeue(number) if job.uid == os.getuid()), None)

    def is_ours(self, comment: str) -> bool:
        """Whether a job's comment says that it runs this cluster."""
        return comment == launching.job_comment(self.directory.name)

    def is_running(self) -> bool:
        """Whether the agents may still run. Slurm is asked now and then (``pacing``); if it is silent, they may."""
        if self.process is not None:
            return self.process.poll() is None
        if self.place is Place.LOCAL:
            record = self.directory.job_record
            return record is not None and record.alive
        now = time.monotonic()
        if now - self._asked < squeue_interval(now - self._begun):
            return True
        self._asked = now
        try:
            job = self.find()
        except SlurmUnreachableError:
            return True
        return job is not None and job.state.is_alive

    def wait_final_state(self) -> QueuedJob | None:
        """The job that has ended, once Slurm shows how. None without a job of its own."""
        if self.place in {Place.LOCAL, Place.ALLOCATION}:
            return None
        deadline = time.monotonic() + JOB_STATE_LIMIT
        while True:
            with contextlib.suppress(SlurmUnreachableError):
                job = self.find()
                if has_ended(job) or time.monotonic() > deadline:
                    return job
            if time.monotonic() > deadline:
                return None
            time.sleep(JOB_STATE_INTERVAL)

    def state(self, job: QueuedJob | None = None) -> str:
        """The state of the job in Slurm's words; ``running`` or ``gone`` where there is none."""
        job = job or self.find()
        if job:
            return job.state.lower()
        record = self.directory.job_record
        return "running" if record and record.alive else "gone"


def _prepare_child() -> None:
    """Let srun or the agent end with this process, and receive the signals that are blocked here meanwhile."""
    die_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SLURM_SIGNALS)
