"""What the bridge needs of a Slurm, whichever way it is reached."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pinnace.errors import SlurmError
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinnace.bridge.options import Options
    from pinnace.slurm.states import JobState

MARK = "pinnace-bridge:"
TAG = re.compile(re.escape(MARK) + r"[0-9A-Za-z-]{1,64}/[0-9]{1,6}(?![^\s'\"])")


class UnreachableError(SlurmError):
    """Slurm does not answer, or not to us: to be tried again. What was asked for may have been done."""


def own_directory() -> str:
    """Where the jobs of the bridge's own user run that do not say where, and what belongs to them is kept."""
    return str(Path.home() / "slurmjobs")


def tag(uid: str, attempt: int) -> str:
    """The word in a job's comment by which it is found again: of which object it is, and of which try."""
    return f"{MARK}{uid}/{attempt}"


def tag_in(comment: str) -> str:
    """The tag with which a comment begins. What follows it is the user's own, and may look like a tag too."""
    found = TAG.match(comment)
    return found[0] if found else ""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is to be submitted."""

    tag: str
    script: str
    arguments: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def commented(self) -> Options:
        """The options with our tag before the user's own comment, and that before all others."""
        comment = self.options.get("--comment", "")
        return {"--comment": f"{self.tag} {comment}".strip()} | {
            name: value for name, value in self.options.items() if name != "--comment"
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """What Slurm says of a job, or of a task of an array. Times are seconds since 1970; 0 is unknown."""

    id: int
    task: str = ""
    tag: str
    user: str = ""  # whose job it is; empty if Slurm does not tell
    state: JobState
    reason: str = ""
    submitted: int = 0
    start: int = 0
    end: int = 0
    nodes: str = ""
    node_count: int = 0
    status: int = 0  # as wait(2) has it


@dataclass(frozen=True, kw_only=True)
class Accounted:
    """What accounting says of a job that has ended, tasks of an array taken together."""

    reports: tuple[Report, ...]
    elapsed: int = 0  # seconds, of all tasks
    cpu: float = 0.0  # seconds
    memory: int = 0  # bytes, of the largest task of a step
    tres: str = ""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition as WLM shows it: what its nodes have at least, what they have in all, their features."""

    name: str
    nodes: int
    cpus: int
    memory: int  # MiB
    minutes: int | None
    features: tuple[str, ...] = ()
    up: bool = True


class Backend(Protocol):
    """A Slurm as one user of it. Every method may raise SlurmError, which is final, or UnreachableError."""

    user: str
    files: bool
    """Whether the job's files are ours to read and write."""

    def directory(self) -> str:
        """Where jobs run that do not say where."""

    def submit(self, submission: Submission) -> int: ...

    def jobs(self) -> list[Report]:
        """All jobs of ours, by one question: those in the queue and those that ended a while ago."""

    def accounted(self, jobs: Iterable[int]) -> dict[int, Accounted]:
        """What accounting knows of these jobs."""

    def recall(self, tag: str, name: str, since: int) -> int | None:
        """The job of that tag that Slurm has forgotten and accounting has not."""

    def cancel(self, job: int) -> None:
        """That it has ended is as good."""

    def hold(self, job: int, *, held: bool) -> None:
        """Keep a pending job from starting, or no longer."""

    def stop(self, job: int, *, stopped: bool) -> None:
        """Stop the processes of a running job, or let them go on."""

    def partitions(self) -> list[Partition]: ...


def words_of(error: object) -> str:
    """An error of slurmrestd's in one line: of its answer, only what is known to be an error's words."""
    known = error if isinstance(error, dict) else {}
    parts = (known.get(key) for key in ("error", "description", "source"))
    return printable(": ".join(dict.fromkeys(str(part) for part in parts if part)), 300) or "an error without words"
