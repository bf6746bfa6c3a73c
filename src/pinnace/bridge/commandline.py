"""Slurm through its command line, on the site, as the user who runs the bridge and as nobody else.

Names, comments and command lines of jobs are whatever their owners wrote, line ends included. So squeue and sacct are
asked to separate fields by a word that is made for each question, and what they print is split at that word only.
"""

from __future__ import annotations

import datetime as dt
import getpass
import os
import re
import secrets
from typing import TYPE_CHECKING

from pinnace.bridge import options, wrapping
from pinnace.bridge.backend import TAG, Accounted, Partition, Report, UnreachableError, own_directory, tag_in
from pinnace.errors import SlurmError
from pinnace.slurm.commands import Slurm, submission_environment
from pinnace.slurm.states import JobState
from pinnace.slurm.times import parse_limit
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinnace.bridge.backend import Submission

# What Slurm's commands say when slurmctld or slurmdbd does not answer, or only too late.
PASSING = re.compile(
    r"unable to contact|socket timed out|timed out|connection refused|communication|temporarily|did not answer"
    r"|zero bytes|controller not responding|problem talking to the database|no route to host|in standby",
    re.IGNORECASE,
)
# With a width, because squeue cuts at 20 otherwise.
QUEUE = ("JobArrayID:64", "Comment:100", "State:20", "Reason:80", "SubmitTime:24", "StartTime:24", "EndTime:24",
         "NodeList:500", "NumNodes:12", "exit_code:12")  # fmt: skip
ACCOUNTING = ("JobID", "State", "Submit", "Start", "End", "NodeList", "NNodes", "ExitCode", "ElapsedRaw",
              "TotalCPU", "MaxRSS", "AllocTRES", "SubmitLine")  # fmt: skip
NUMBER = re.compile(r"\d+(_\S+)?")
# How `submit` begins its command line, as accounting keeps it (some versions quote what has spaces in it).
SUBMITTED = re.compile(rf"(?:\S*/)?sbatch --parsable ['\"]?--comment=['\"]?({TAG.pattern})")
# What of the bridge's environment sbatch needs, and every job gets. All else is the bridge's own.
INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TZ|LANG|LC_[A-Z]+|LD_LIBRARY_PATH|MANPATH|BASH_ENV|MODULE\w*|LMOD_\w*|__LMOD\w*"
    r"|SLURM_CONF|SBATCH_\w+"
)
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class CommandLine:
    """The Slurm of this host."""

    files = True

    def __init__(self) -> None:
        self._slurm = Slurm()
        self.user = getpass.getuser()

    def directory(self) -> str:
        return own_directory()

    def _cli(self, *argv: str, stdin: str = "", environment: dict[str, str] | None = None) -> str:
        try:
            return self._slurm.cli(*argv, stdin=stdin, environment=environment)
        except SlurmError as error:
            if PASSING.search(error.message):
                raise UnreachableError(error.message) from error
            raise

    def submit(self, submission: Submission) -> int:
        """The job's variables and arguments are in its script: sbatch itself runs in the bridge's own environment."""
        argv = ["sbatch", "--parsable", *options.arguments(submission.commented)]
        script = options.without_directives(submission.script)
        if submission.arguments or submission.environment:
            script = wrapping.wrapped(script, submission.arguments, environment=submission.environment)
        printed = self._cli(*argv, stdin=script, environment=inherited(os.environ))
        found = re.match(r"(\d+)(;|\s|$)", printed)
        if not found:
            raise SlurmError(f"sbatch told no job's number: {printable(printed, 200)}")
        return int(found[1])

    def jobs(self) -> list[Report]:
        word = separator()
        form = ",".join(f"{field}{word}" for field in QUEUE)
        printed = self._cli("squeue", "--me", "--states=all", "--noheader", f"--Format={form}", environment=utc())
        return parse_queue(printed, word, self.user)

    def accounted(self, jobs: Iterable[int]) -> dict[int, Accounted]:
        wanted = ",".join(map(str, jobs))
        return self._sacct(f"--jobs={wanted}") if wanted else {}

    def recall(self, tag: str, name: str, since: int) -> int | None:
        del name  # accounting keeps the line that submitted a job, and so the tag
        begin = dt.datetime.fromtimestamp(since, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        found = self._sacct("--allocations", f"--starttime={begin}")
        return next((job for job, about in found.items() if about.reports[0].tag == tag), None)

    def _sacct(self, *argv: str) -> dict[int, Accounted]:
        """Only of the bridge's own user, also where that user may see the jobs of all."""
        word = separator()
        form = ("--noheader", "--parsable", f"--delimiter={word}", f"--format={','.join(ACCOUNTING)}")
        printed = self._cli("sacct", f"--user={self.user}", *form, *argv, environment=utc())
        return parse_accounted(printed, word)

    def cancel(self, job: int) -> None:
        try:
            self._cli("scancel", str(job))
        except UnreachableError:
            raise
        except SlurmError as error:
            if "Invalid job id" not in error.message and "already complet" not in error.message:
                raise

    def hold(self, job: int, *, held: bool) -> None:
        self._cli("scontrol", "hold" if held else "release", str(job))

    def stop(self, job: int, *, stopped: bool) -> None:
        self._cli("scancel", "--full", f"--signal={'STOP' if stopped else 'CONT'}", str(job))

    def partitions(self) -> list[Partition]:
        return parse_partitions(self._cli("sinfo", "--noheader", "--exact", "--format=%R|%D|%c|%m|%l|%f|%a"))


def separator() -> str:
    """A word that nobody could have written into a job's name or comment."""
    return f"<{secrets.token_hex(16)}>"


def records(text: str, word: str, count: int) -> list[list[str]]:
    """What was printed with that word after every field, in groups of so many."""
    fields = [field.strip() for field in text.split(word)[:-1]]
    return [fields[start : start + count] for start in range(0, len(fields) - count + 1, count)]


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the bridge's environment goes to sbatch, and from there to every job."""
    kept = submission_environment(environment)
    return {name: value for name, value in kept.items() if INHERITED.fullmatch(name)}


def utc() -> dict[str, str]:
    """Slurm's commands print local times: let these be unambiguous."""
    return dict(os.environ) | {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}


def moment(text: str) -> int:
    """Seconds since 1970 of a time as Slurm prints it; 0 if it has none."""
    try:
        return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp())
    except ValueError:
        return 0


def job_and_task(text: str) -> tuple[int, str]:
    """``12``, ``12_3`` and ``12_[4-9%2]``."""
    job, _, task = text.partition("_")
    return int(job), task


def parse_queue(text: str, word: str, user: str) -> list[Report]:
    """What squeue printed of a user's jobs. Only those that have our tag are looked at more closely."""
    return [parse_queued(row, user) for row in records(text, word, len(QUEUE)) if tag_in(row[1]) and is_job(row[0])]


def is_job(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None


def parse_queued(row: list[str], user: str) -> Report:
    number, comment, state, reason, submitted, start, end, nodes, count, status = row
    job, task = job_and_task(number)
    return Report(
        id=job,
        task=task,
        tag=tag_in(comment),
        user=user,
        state=JobState.parse(state),
        reason="" if reason == "None" else reason,
        submitted=moment(submitted),
        start=moment(start),
        end=moment(end),
        nodes=nodes,
        node_count=int(count) if count.isdigit() else 0,
        status=int(status) if status.isdigit() else 0,
    )


def tag_of_line(line: str) -> str:
    """The tag in the command line that submitted a job, if `submit` wrote that line."""
    found = SUBMITTED.match(line)
    return found[1] if found else ""


def parse_accounted(text: str, word: str) -> dict[int, Accounted]:
    """What sacct printed: a record for each job or task, followed by those of its steps."""
    reports: dict[int, list[Report]] = {}
    sums: dict[int, dict[str, float]] = {}
    tres: dict[int, str] = {}
    for row in records(text, word, len(ACCOUNTING)):
        number, state, submitted, start, end, nodes, count, code, elapsed, cpu, memory, of, submit_line = row
        base = number.partition(".")[0].partition("+")[0]
        if not is_job(base):
            continue
        job, task = job_and_task(base)
        sums.setdefault(job, {"elapsed": 0, "cpu": 0.0, "memory": 0})
        if "." in number:  # a step
            sums[job]["memory"] = max(sums[job]["memory"], size(memory))
            continue
        exit_code, _, number_of_signal = code.partition(":")
        reports.setdefault(job, []).append(
            Report(
                id=job,
                task=task,
                tag=tag_of_line(submit_line),
                state=JobState.parse(state),
                submitted=moment(submitted),
                start=moment(start),
                end=moment(end),
                nodes="" if nodes == "None assigned" else nodes,
                node_count=int(count or 0),
                status=int(exit_code or 0) << 8 | int(number_of_signal or 0),
            )
        )
        sums[job]["elapsed"] += int(elapsed or 0)
        sums[job]["cpu"] += seconds(cpu)
        tres[job] = of
    return {
        job: Accounted(
            reports=tuple(of_job),
            elapsed=int(sums[job]["elapsed"]),
            cpu=round(sums[job]["cpu"], 3),
            memory=int(sums[job]["memory"]),
            tres=tres[job],
        )
        for job, of_job in reports.items()
    }


def size(text: str) -> int:
    """Bytes of a size as sacct prints it."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    return int(float(number or 0) * unit)


def seconds(text: str) -> float:
    """``1-02:03:04``, ``03:04.567``."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in (clock or "0").split(":"):
        total = total * 60 + float(part)
    return total + 86400 * int(days or 0)


def parse_partitions(text: str) -> list[Partition]:
    """What sinfo printed: a line for each kind of nodes in each partition."""
    found: dict[str, Partition] = {}
    for line in filter(None, text.split("\n")):
        name, nodes, cpus, memory, limit, features, state = line.split("|")
        known = found.get(name)
        mine = tuple(feature for feature in features.split(",") if feature not in {"(null)", ""})
        found[name] = Partition(
            name=name,
            nodes=int(nodes) + (known.nodes if known else 0),
            cpus=min(int(cpus), known.cpus) if known else int(cpus),
            memory=min(int(memory), known.memory) if known else int(memory),
            minutes=None if limit == "infinite" else parse_limit(limit),
            features=tuple(sorted({*mine, *(known.features if known else ())})),
            up=state == "up",
        )
    return list(found.values())
