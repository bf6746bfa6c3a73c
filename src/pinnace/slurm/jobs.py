"""What Slurm says of jobs: the record of squeue and that of sacct, which fields are asked for, and how they are read.

Names, comments and command lines of jobs are whatever their owners wrote: separators, line ends, whole rows of squeue's
output. So squeue and sacct are asked to put a word after every field that nobody can know beforehand, and what they
print is split at that word only.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pinnace.errors import SlurmError
from pinnace.slurm.sizes import parse_bytes
from pinnace.slurm.states import JobState
from pinnace.slurm.times import parse_duration, parse_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SQUEUE = ("JobArrayID", "UserID", "State", "Reason", "SubmitTime", "StartTime", "EndTime", "NodeList", "NumNodes",
          "exit_code", "Partition", "TimeLeft", "TimeLimit", "TimeUsed", "Name", "Comment")  # fmt: skip
SACCT = ("JobID", "JobName", "State", "Submit", "Start", "End", "NodeList", "NNodes", "ExitCode", "ElapsedRaw",
         "TotalCPU", "MaxRSS", "AllocTRES", "Comment", "SubmitLine")  # fmt: skip
# ``12``; ``12_3`` and ``12_[4-9%2]`` of an array; ``12+0`` of a heterogeneous job.
JOB = re.compile(r"(?P<id>[0-9]+)(?:_(?P<task>\S+)|\+[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """What Slurm says of a job, or of a task of an array. Times are seconds since 1970; 0 is unknown."""

    id: int
    task: str = ""  # of an array: its number, or ``[4-9%2]`` for those that wait together
    name: str = ""
    state: JobState
    reason: str = ""
    submitted: int = 0
    start: int = 0
    end: int = 0
    nodes: str = ""
    node_count: int = 0
    status: int = 0  # as wait(2) has it
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class QueuedJob(JobRecord):
    """A row of squeue. The user is known by number, or by name; the durations are as squeue prints them."""

    uid: int | None = None
    user: str = ""
    partition: str = ""
    time_left: str = ""
    time_limit: str = ""
    time_used: str = ""


@dataclass(frozen=True, kw_only=True)
class AccountedJob(JobRecord):
    """What sacct says of a job and its steps. Not every site keeps comments; the line that submitted a job is kept."""

    elapsed: int = 0  # seconds
    cpu: float = 0.0  # seconds
    memory: int = 0  # bytes, of the largest task of a step
    tres: str = ""
    submit_line: str = ""


def separator() -> str:
    """A word that nobody could have written into a job's name or comment."""
    return f"<{secrets.token_hex(16)}>"


def squeue_format(word: str) -> str:
    """For ``--Format``: every field whole (of width 0), and the word after it."""
    return ",".join(f"{name}:0{word}" for name in SQUEUE)


def parse_squeue(text: str, word: str, *, ours: Callable[[str], bool] | None = None) -> list[QueuedJob]:
    """What squeue printed in this format. Whatever does not have exactly the fields that were asked for is refused.

    With ``ours``, jobs whose comment it does not hold of are left out, and not looked at any further.
    """
    rows = _rows(text, word, len(SQUEUE), "squeue")
    return [_queued(row) for row in rows if ours is None or ours(row[-1])]


def _queued(row: Sequence[str]) -> QueuedJob:
    try:
        number, uid, state, reason, submitted, start, end, nodes, count, status, partition, left, limit, used, name, \
            comment = row  # fmt: skip
        job, task = parse_job_id(number)
        return QueuedJob(
            id=job,
            task=task,
            uid=int(uid),
            name=name,
            state=JobState.parse(state),
            reason=reason,
            submitted=parse_timestamp(submitted),
            start=parse_timestamp(start),
            end=parse_timestamp(end),
            nodes=nodes,
            node_count=int(count) if count.isdigit() else 0,
            status=parse_status(status),
            partition=partition,
            time_left=left,
            time_limit=limit,
            time_used=used,
            comment="" if comment == "(null)" else comment,
        )
    except (ValueError, IndexError) as error:
        raise SlurmError(f"squeue printed a row that cannot be read ({error}): {list(row)!r}") from error


def parse_sacct(text: str, word: str) -> list[AccountedJob]:
    """What sacct printed with this word after every field: a row for each job or task, and below it those of its steps.

    A job of which a row cannot be read, as with a state of a newer Slurm, is not known.
    """
    found: dict[str, AccountedJob] = {}
    unknown: set[str] = set()
    for row in _rows(text, word, len(SACCT), "sacct"):
        fields = [field.strip() for field in row]
        number, _, step = fields[0].partition(".")
        try:
            if not step:
                found[number] = _accounted(fields)
            elif number in found:
                largest = max(found[number].memory, parse_bytes(fields[SACCT.index("MaxRSS")]))
                found[number] = replace(found[number], memory=largest)
        except (ValueError, IndexError):
            unknown.add(_without_part(number))
    return [job for number, job in found.items() if _without_part(number) not in unknown]


def _without_part(number: str) -> str:
    return re.split(r"[_+]", number, maxsplit=1)[0]


def _accounted(row: Sequence[str]) -> AccountedJob:
    number, name, state, submitted, start, end, nodes, count, code, elapsed, cpu, memory, tres, comment, line = row
    job, task = parse_job_id(number)
    return AccountedJob(
        id=job,
        task=task,
        name=name,
        state=JobState.parse(state),
        submitted=parse_timestamp(submitted),
        start=parse_timestamp(start),
        end=parse_timestamp(end),
        nodes="" if nodes == "None assigned" else nodes,
        node_count=int(count or 0),
        status=parse_status(code),
        elapsed=int(elapsed or 0),
        cpu=parse_duration(cpu) or 0.0,
        memory=parse_bytes(memory),
        tres=tres,
        comment=comment,
        submit_line=line,
    )


def _rows(text: str, word: str, count: int, command: str) -> Iterator[list[str]]:
    """The fields of each row. Only what is printed between rows, a newline, is taken off."""
    *fields, rest = text.split(word)
    if rest.strip() or len(fields) % count:
        raise SlurmError(f"{command} printed what is not the fields that it was asked for: {text[:80]!r}")
    for start in range(0, len(fields), count):
        first, *others = fields[start : start + count]
        yield [first.strip(), *others]


def parse_job_id(text: str) -> tuple[int, str]:
    """The number of a job, and the task if it is one of an array."""
    found = JOB.fullmatch(text)
    if not found:
        raise ValueError(f"no job is called {text!r}")
    return int(found["id"]), found["task"] or ""


def parse_status(text: str) -> int:
    """An exit code as wait(2) has it: squeue prints that number, or like sacct ``code:signal``."""
    code, colon, signal = text.partition(":")
    if colon:
        return int(code or 0) << 8 | int(signal or 0)
    return int(code) if code.isdigit() else 0
