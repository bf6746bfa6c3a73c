"""Slurm's commands, one method each. What they print comes back as data; what they refuse, in their own words.

Names and comments of jobs are free text, and people put everything into them: separators, line ends, whole rows of
squeue's output. So squeue is asked to separate fields and rows by words that nobody can know beforehand.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.errors import SlurmError, UsageError
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LIMIT = 60.0  # seconds that a command of Slurm's may take; its own time-out is 10 per try
REFUSED = "Change the options: `sinfo` shows partitions, their nodes and limits, `sacctmgr show assoc` your accounts."
ACCOUNTING = ("JobID", "State", "Comment", "SubmitLine")
FIELDS = ("%i", "%U", "%T", "%r", "%S", "%N", "%P", "%L", "%l", "%M", "%D", "%j", "%k")
PART = re.compile(r"[_+]")  # begins the part of a job that is an array, or heterogeneous
# The user's defaults for these commands would hide rows from us, or let scancel ask before it does anything.
OF_QUERIES = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of ``squeue``. ``user`` is the number of the user whose job it is."""

    id: int
    user: int
    name: str
    state: JobState
    reason: str
    start: str
    nodes: str
    partition: str
    time_left: str
    time_limit: str
    time_used: str
    node_count: str
    comment: str


@dataclass(frozen=True, kw_only=True)
class Accounted:
    """A row of ``sacct``. Not every site keeps comments; the line that submitted a job is always kept."""

    id: int
    state: JobState
    comment: str
    submit_line: str


def submission_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the enclosing job's ``SLURM_*``, which sbatch and srun would take for our wishes.

    ``SLURM_CONF`` says where Slurm is, and ``SBATCH_*`` and the like are the user's own defaults: they stay.
    """
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SLURMD_", "PMI", "PMIX"))
    }


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For commands whose output we read: without the user's defaults for them. A token may be the way in."""
    known = submission_environment(environment)
    token = {"SLURM_JWT": environment["SLURM_JWT"]} if "SLURM_JWT" in environment else {}
    return {name: value for name, value in known.items() if not name.startswith(OF_QUERIES)} | token


def checked_text(what: str, text: str) -> str:
    """Text that goes into a job's name or comment, or an option: without control characters and line ends."""
    if not text.isprintable():
        raise UsageError(f"{what} has a character that cannot be printed: {text!r}")
    return text


class Slurm:
    """The Slurm of this site, through its command line, as the user who calls."""

    def cli(self, *argv: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
        """Run any command of Slurm's and give what it prints."""
        try:
            result = subprocess.run(
                argv,
                input=stdin.encode(),
                capture_output=True,
                check=False,
                timeout=LIMIT,
                env=query_environment(os.environ) if environment is None else environment,
            )
        except FileNotFoundError as error:
            raise SlurmError(
                f"there is no `{argv[0]}` here",
                hint="Run pinnace on a login node of your site, or use `--local` to run on this machine alone.",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SlurmError(
                f"`{argv[0]}` did not answer for {LIMIT:.0f} s", hint="Is slurmctld up? Try `sinfo`."
            ) from error
        if result.returncode:
            words = result.stderr.decode(errors="replace").strip()
            raise SlurmError(f"{argv[0]}: {words or f'exit code {result.returncode}'}")
        return result.stdout.decode(errors="replace")

    def sbatch(self, script: str, options: Sequence[str]) -> int:
        """Submit a batch script. Gives the id of the job."""
        argv = ["sbatch", "--parsable", *options]
        try:
            printed = self.cli(*argv, stdin=script, environment=submission_environment(os.environ))
        except SlurmError as error:
            raise SlurmError(error.message, hint=error.hint or REFUSED) from None
        return int(printed.strip().split(";")[0])

    def squeue(self, *jobs: int) -> list[Job]:
        """The state of these jobs, all in one call; of all our own without an id. Ended ones are missing."""
        which = ["--jobs", ",".join(map(str, jobs))] if jobs else ["--me"]
        mark = secrets.token_hex(16)
        argv = ["squeue", "--noheader", "--states=all", "--format", row_format(mark), *which]
        try:
            rows = parse_rows(self.cli(*argv), mark)
        except SlurmError as error:
            if "Invalid job id" in error.message:  # it ended so long ago that Slurm has forgotten it
                return []
            raise
        return [job for job in rows if jobs or job.user == os.getuid()]

    def sacct(self, *jobs: int) -> list[Accounted]:
        """How these jobs of ours ended, all in one call. Those that accounting does not know are missing."""
        which = ["--allocations", f"--user={os.getuid()}", f"--jobs={','.join(map(str, jobs))}"]
        mark = secrets.token_hex(16)
        form = ["--noheader", "--parsable", f"--delimiter={mark}", f"--format={','.join(ACCOUNTING)}"]
        return parse_accounting(self.cli("sacct", *form, *which), mark) if jobs else []

    def rename(self, job: int, name: str, comment: str) -> None:
        """Let the queue and accounting say what a job is now."""
        about = [f"JobName={checked_text('a name', name)}", f"Comment={checked_text('a comment', comment)}"]
        self.cli("scontrol", "update", f"JobId={job}", *about)

    def cancel(self, *jobs: int, ours: Callable[[str], bool], options: Sequence[str] = ()) -> list[int]:
        """Cancel or signal those of these jobs that are proven to be ours, and give them.

        Proof is that Slurm says, now, that the job is our user's and that ``ours`` is true of its comment. A number
        alone proves nothing: Slurm gives the same numbers again.
        """
        proven = [job.id for job in self.squeue(*jobs) if job.user == os.getuid() and ours(job.comment)] if jobs else []
        if proven:
            self.scancel(*proven, options=options)
        return proven

    def scancel(self, *jobs: int | str, options: Sequence[str] = ()) -> None:
        """Cancel or signal jobs or steps that are ours for sure; that one has ended already is as good."""
        try:
            self.cli("scancel", *options, *map(str, jobs))
        except SlurmError as error:
            if "Invalid job id" not in error.message and "already completed" not in error.message:
                raise

    def largest_node(self, partition: str | None = None) -> dict[str, int]:
        """The CPUs and the memory (in MiB) that most nodes of a partition have at least; of the default one without."""
        where = [f"--partition={partition}"] if partition else []
        printed = self.cli("sinfo", "--noheader", "--Node", "--format=%P %c %m", *where)
        rows = [line.split() for line in printed.split("\n") if line.strip()]
        own = [row for row in rows if partition or row[0].endswith("*")] or rows
        if not own:
            raise SlurmError("sinfo shows no node")
        cpus, memory = (sorted(int(row[n].rstrip("+")) for row in own)[(len(own) - 1) // 2] for n in (1, 2))
        return {"cpus": cpus, "memory": memory}

    def hostnames(self, nodelist: str) -> list[str]:
        """The names behind Slurm's short form of a list of nodes."""
        return self.cli("scontrol", "show", "hostnames", nodelist).split()


def row_format(mark: str) -> str:
    """What squeue is to print for a job: the mark and ``>`` before each row, the mark and ``,`` between fields."""
    return f"{mark}>" + f"{mark},".join(FIELDS)


def parse_rows(text: str, mark: str) -> list[Job]:
    """What squeue printed in this format. Whatever does not have exactly the fields that were asked for is refused."""
    before, *rows = text.split(f"{mark}>")
    if before.strip():
        raise SlurmError(f"squeue printed what it was not asked for: {before[:80]!r}")
    return [_parse_job(row.removesuffix("\n").split(f"{mark},")) for row in rows]


def parse_accounting(text: str, mark: str) -> list[Accounted]:
    """What sacct printed with this mark after every field."""
    *fields, _ = (field.strip() for field in text.split(mark))
    rows = [fields[start : start + len(ACCOUNTING)] for start in range(0, len(fields), len(ACCOUNTING))]
    if fields and len(rows[-1]) != len(ACCOUNTING):
        raise SlurmError("sacct did not print the fields that it was asked for")
    found = []
    for number, state, comment, line in rows:
        with contextlib.suppress(ValueError, IndexError):  # a state of a newer Slurm: that job is not known
            found.append(Accounted(id=job_id(number), state=JobState.parse(state), comment=comment, submit_line=line))
    return found


def job_id(text: str) -> int:
    """``12``, ``12_3`` and ``12_[4-9%2]`` of an array, ``12+0`` of a heterogeneous job: the number in front."""
    return int(PART.split(text, maxsplit=1)[0])


def _parse_job(fields: Sequence[str]) -> Job:
    try:
        number, user, state, reason, start, nodes, partition, left, limit, used, count, name, comment = fields
        return Job(
            id=job_id(number),
            user=int(user),
            name=name,
            state=JobState.parse(state),
            reason=reason,
            start="" if start == "N/A" else start,
            nodes=nodes,
            partition=partition,
            time_left=left,
            time_limit=limit,
            time_used=used,
            node_count=count,
            comment="" if comment == "(null)" else comment,
        )
    except (ValueError, IndexError) as error:
        raise SlurmError(f"squeue printed a row that cannot be read ({error}): {list(fields)!r}") from error


def batch_script(directives: Sequence[str], command: str, *, shebang: str = "#!/bin/bash -l") -> str:
    """A batch script: its directives and its only command."""
    return "\n".join([shebang, *(f"#SBATCH {directive}" for directive in directives), "", command, ""])
