"""A Slurm as one user of it, whichever way it is reached: ``commandline`` or slurmrestd (``rest``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pinnace.slurm.jobs import AccountedJob, QueuedJob
    from pinnace.slurm.options import SbatchOptions
    from pinnace.slurm.partitions import Partition


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    """What is to be submitted. The order of the options is that of sbatch's command line."""

    script: str
    arguments: tuple[str, ...] = ()
    options: SbatchOptions = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """A Slurm as one user of it. Every method may raise SlurmError, which is final, or SlurmUnreachableError."""

    user: str
    files: bool
    """Whether the job's files are ours to read and write."""
    directory: str
    """Where jobs run that do not say where."""

    def submit(self, job: JobDescription) -> int: ...

    def jobs(self, ours: Callable[[str], bool]) -> list[QueuedJob]:
        """All jobs whose comment is ours, by one question: those in the queue and those that ended a while ago."""

    def accounted(self, jobs: Iterable[int]) -> dict[int, tuple[AccountedJob, ...]]:
        """What accounting knows of these jobs, and of the tasks of those that are arrays."""

    def recall(self, ours: Callable[[AccountedJob], bool], *, name: str, since: int) -> int | None:
        """The job of ours that Slurm has forgotten and accounting has not."""

    def cancel(self, job: int) -> None:
        """That it has ended is as good."""

    def hold(self, job: int, *, held: bool) -> None:
        """Keep a pending job from starting, or no longer."""

    def stop(self, job: int, *, stopped: bool) -> None:
        """Stop the processes of a running job, or let them go on."""

    def partitions(self) -> list[Partition]: ...


def by_job(records: Iterable[AccountedJob]) -> dict[int, tuple[AccountedJob, ...]]:
    """Tasks of an array, and the parts of a heterogeneous job, together."""
    found: dict[int, tuple[AccountedJob, ...]] = {}
    for record in records:
        found[record.id] = (*found.get(record.id, ()), record)
    return found
