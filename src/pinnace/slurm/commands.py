"""Slurm's commands, one method each. What they print comes back as data; what they refuse, in their own words."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.errors import SlurmError
from pinnace.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT = 60.0  # seconds that a command of Slurm's may take; its own time-out is 10 per try
REFUSED = "Change the options: `sinfo` shows partitions, their nodes and limits, `sacctmgr show assoc` your accounts."
FIELDS = ("%i", "%j", "%T", "%r", "%S", "%N", "%P", "%L", "%l", "%M", "%D", "%k")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A line of ``squeue``."""

    id: int
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


def submission_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the enclosing job's ``SLURM_*``, which sbatch and srun would take for our wishes.

    ``SLURM_CONF`` says where Slurm is, and ``SBATCH_*`` and the like are the user's own defaults: they stay.
    """
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SLURMD_", "PMI", "PMIX"))
    }


class Slurm:
    """The Slurm of this site, through its command line, as the user who calls."""

    def cli(self, *argv: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
        """Run any command of Slurm's and give what it prints."""
        try:
            result = subprocess.run(
                argv, input=stdin, capture_output=True, text=True, check=False, timeout=LIMIT, env=environment
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
            raise SlurmError(f"{argv[0]}: {result.stderr.strip() or f'exit code {result.returncode}'}")
        return result.stdout

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
        argv = ["squeue", "--noheader", "--states=all", "--format", "\x1f".join(FIELDS), *which]
        try:
            return [parse_job(line) for line in self.cli(*argv).splitlines() if line.strip()]
        except SlurmError as error:
            if "Invalid job id" in error.message:  # it ended so long ago that Slurm has forgotten it
                return []
            raise

    def final_state(self, job: int) -> JobState | None:
        """How a job ended, as accounting knows it; None if it does not."""
        printed = self.cli("sacct", "--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={job}")
        states = [JobState.parse(line) for line in printed.splitlines() if line.strip()]
        return states[-1] if states else None

    def rename(self, job: int, name: str, comment: str) -> None:
        """Let the queue and accounting say what a job is now."""
        self.cli("scontrol", "update", f"JobId={job}", f"JobName={name}", f"Comment={comment}")

    def scancel(self, *jobs: int | str, options: Sequence[str] = ()) -> None:
        """Cancel or signal jobs or steps; that one has ended already is as good."""
        try:
            self.cli("scancel", *options, *map(str, jobs))
        except SlurmError as error:
            if "Invalid job id" not in error.message and "already completed" not in error.message:
                raise

    def largest_node(self, partition: str | None = None) -> dict[str, int]:
        """The CPUs and the memory (in MiB) that most nodes of a partition have at least; of the default one without."""
        where = [f"--partition={partition}"] if partition else []
        printed = self.cli("sinfo", "--noheader", "--Node", "--format=%P %c %m", *where)
        rows = [line.split() for line in printed.splitlines() if line.strip()]
        own = [row for row in rows if partition or row[0].endswith("*")] or rows
        if not own:
            raise SlurmError("sinfo shows no node")
        cpus, memory = (sorted(int(row[n].rstrip("+")) for row in own)[(len(own) - 1) // 2] for n in (1, 2))
        return {"cpus": cpus, "memory": memory}

    def hostnames(self, nodelist: str) -> list[str]:
        """The names behind Slurm's short form of a list of nodes."""
        return self.cli("scontrol", "show", "hostnames", nodelist).split()


def parse_job(line: str) -> Job:
    """A line of squeue in our format."""
    number, name, state, reason, start, nodes, partition, left, limit, used, count, comment = line.split("\x1f")
    return Job(
        id=int(number.split("_")[0]),
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


def batch_script(directives: Sequence[str], command: str, *, shebang: str = "#!/bin/bash -l") -> str:
    """A batch script: its directives and its only command."""
    return "\n".join([shebang, *(f"#SBATCH {directive}" for directive in directives), "", command, ""])
