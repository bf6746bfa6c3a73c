"""Slurm through its command line, on the site, as the user who runs this process and as nobody else."""

from __future__ import annotations

import getpass
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pinnace.slurm.backend import by_job
from pinnace.slurm.commands import Slurm
from pinnace.slurm.options import argv
from pinnace.slurm.scripts import without_directives, wrapped
from pinnace.slurm.times import format_utc
from pinnace.slurm.variables import site_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pinnace.slurm.backend import JobDescription
    from pinnace.slurm.jobs import AccountedJob, QueuedJob
    from pinnace.slurm.partitions import Partition


class CommandLine:
    """The Slurm of this host."""

    files = True

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.user = getpass.getuser()
        self._slurm = Slurm()

    def submit(self, job: JobDescription) -> int:
        """The job's variables and arguments are in its script: sbatch itself runs in our own environment."""
        script = without_directives(job.script)
        if job.arguments or job.environment:
            script = wrapped(script, job.arguments, environment=job.environment)
        return self._slurm.sbatch(script, argv(job.options), environment=site_environment(os.environ))

    def jobs(self, ours: Callable[[str], bool]) -> list[QueuedJob]:
        return [replace(job, user=self.user) for job in self._slurm.squeue(ours=ours)]

    def accounted(self, jobs: Iterable[int]) -> dict[int, tuple[AccountedJob, ...]]:
        return by_job(self._slurm.sacct(*jobs, steps=True))

    def recall(self, ours: Callable[[AccountedJob], bool], *, name: str, since: int) -> int | None:
        del name  # accounting keeps the line that submitted a job, and so what is ours in it
        return next((job.id for job in self._slurm.sacct(since=format_utc(since)) if ours(job)), None)

    def cancel(self, job: int) -> None:
        self._slurm.scancel(job)

    def hold(self, job: int, *, held: bool) -> None:
        self._slurm.hold(job, held=held)

    def stop(self, job: int, *, stopped: bool) -> None:
        self._slurm.scancel(job, options=["--full", f"--signal={'STOP' if stopped else 'CONT'}"])

    def partitions(self) -> list[Partition]:
        return self._slurm.partitions()
