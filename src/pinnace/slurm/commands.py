"""Slurm's commands, one method each. What they print comes back as data; what they refuse, in their own words."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from typing import TYPE_CHECKING

from pinnace.errors import SlurmError, SlurmNotFoundError, SlurmUnreachableError
from pinnace.slurm import partitions
from pinnace.slurm.errors import command_error
from pinnace.slurm.gres import parse_gres
from pinnace.slurm.jobs import SACCT, parse_sacct, parse_squeue, separator, squeue_format
from pinnace.slurm.variables import query_environment, submission_environment
from pinnace.validation import plain, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pinnace.slurm.gres import AllocatedGres
    from pinnace.slurm.jobs import AccountedJob, QueuedJob
    from pinnace.slurm.partitions import NodeClass

COMMAND_LIMIT = 60.0  # seconds that a command of Slurm's may take; its own time-out is 10 per try
DEFAULT_BATCH_SCHED_DELAY = 3  # seconds, see slurm.conf(5)
EMPTY_PAUSE = 0.5  # seconds until squeue is asked again if it shows no job at all
REFUSED = "Change the options: `sinfo` shows partitions, their nodes and limits, `sacctmgr show assoc` your accounts."


class Slurm:
    """The Slurm of this site, through its command line, as the user who calls."""

    def cli(
        self, *argv: str, stdin: str = "", environment: Mapping[str, str] | None = None, all_streams: bool = False
    ) -> str:
        """Run any command of Slurm's and give what it prints; with ``all_streams`` on stderr too."""
        try:
            result = subprocess.run(
                argv,
                input=stdin.encode(),
                capture_output=True,
                check=False,
                timeout=COMMAND_LIMIT,
                env=query_environment(os.environ) if environment is None else environment,
            )
        except FileNotFoundError as error:
            raise SlurmError(
                f"there is no `{argv[0]}` here",
                hint="Run pinnace on a login node of your site, or use `--local` to run on this machine alone.",
                argv=argv,
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SlurmUnreachableError(
                f"`{argv[0]}` did not answer for {COMMAND_LIMIT:.0f} s", hint="Is slurmctld up? Try `sinfo`.", argv=argv
            ) from error
        stdout, stderr = (output.decode(errors="replace") for output in (result.stdout, result.stderr))
        if result.returncode:
            raise command_error(argv, result.returncode, stdout=stdout, stderr=stderr)
        return stdout + stderr if all_streams else stdout

    def sbatch(self, script: str, options: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
        """Submit a batch script. Gives the id of the job."""
        given = submission_environment(os.environ) if environment is None else environment
        try:
            printed = self.cli("sbatch", "--parsable", *options, stdin=script, environment=given)
        except SlurmError as error:
            error.hint = error.hint or REFUSED
            raise
        found = re.match(r"(\d+)(;|\s|$)", printed)
        if not found:
            raise SlurmError(f"sbatch told no job's number: {printable(printed, 200)}")
        return int(found[1])

    def squeue(self, *jobs: int, ours: Callable[[str], bool] | None = None, certain: bool = True) -> list[QueuedJob]:
        """The state of these jobs, all in one call; of all our own without an id. Ended ones are missing.

        With ``ours``, only those whose comment it holds of. That there is no job at all is believed if it is said
        twice, unless the answer need not be ``certain``: who acts on it would lose jobs, or submit them again.
        """
        which = ["--jobs", ",".join(map(str, jobs))] if jobs else ["--me"]
        word = separator()
        argv = ["squeue", "--noheader", "--states=all", f"--Format={squeue_format(word)}", *which]
        try:
            printed = self.cli(*argv)
            if certain and not printed.strip():
                time.sleep(EMPTY_PAUSE)
                printed = self.cli(*argv)
        except SlurmNotFoundError:  # it ended so long ago that Slurm has forgotten it
            return []
        return [job for job in parse_squeue(printed, word, ours=ours) if jobs or job.uid == os.getuid()]

    def sacct(self, *jobs: int, since: str = "", steps: bool = False) -> list[AccountedJob]:
        """How these jobs of ours ended, all in one call; or all jobs since a time. What is not known is missing.

        Only with ``steps`` it is known how much memory they took.
        """
        if not jobs and not since:
            return []
        which = [f"--jobs={','.join(map(str, jobs))}"] if jobs else [f"--starttime={since}"]
        which += [] if steps else ["--allocations"]
        word = separator()
        form = ["--noheader", "--parsable", f"--delimiter={word}", f"--format={','.join(SACCT)}"]
        return parse_sacct(self.cli("sacct", f"--user={os.getuid()}", *form, *which), word)

    def rename(self, job: int, name: str, comment: str) -> None:
        """Let the queue and accounting say what a job is now."""
        about = [f"JobName={plain('a name', name)}", f"Comment={plain('a comment', comment)}"]
        self.cli("scontrol", "update", f"JobId={job}", *about)

    def cancel(self, *jobs: int, ours: Callable[[str], bool], options: Sequence[str] = ()) -> list[int]:
        """Cancel or signal those of these jobs that are proven to be ours, and give them.

        Proof is that Slurm says, now, that the job is our user's and that ``ours`` is true of its comment. A number
        alone proves nothing: Slurm gives the same numbers again.
        """
        found = self.squeue(*jobs, ours=ours) if jobs else []
        proven = list(dict.fromkeys(job.id for job in found if job.uid == os.getuid()))
        if proven:
            self.scancel(*proven, options=options)
        return proven

    def scancel(self, *jobs: int | str, options: Sequence[str] = ()) -> None:
        """Cancel or signal jobs or steps that are ours for sure; that one has ended already is as good."""
        with contextlib.suppress(SlurmNotFoundError):
            self.cli("scancel", *options, *map(str, jobs))

    def hold(self, job: int, *, held: bool) -> None:
        """Keep a pending job from starting, or no longer."""
        self.cli("scontrol", "hold" if held else "release", str(job))

    def partitions(self) -> list[partitions.Partition]:
        return partitions.parse_sinfo(self.cli("sinfo", "--noheader", "--exact", f"--format={partitions.SINFO}"))

    def node_classes(self, partition: str) -> list[NodeClass]:
        """The kinds of nodes that a partition has."""
        form = ["--noheader", "--Node", f"--format={partitions.NODES}"]
        return partitions.parse_node_classes(self.cli("sinfo", *form, f"--partition={partition}"))

    def largest_node(self, partition: str | None = None) -> dict[str, int]:
        """The CPUs and the memory (in MiB) that most nodes of a partition have at least; of the default one without."""
        where = [f"--partition={partition}"] if partition else []
        printed = self.cli("sinfo", "--noheader", "--Node", "--format=%P %c %m", *where)
        return partitions.largest_node(printed, of_default=not partition)

    def allocated_gres(self, job: int, host: str) -> list[AllocatedGres]:
        """What a job of ours has of generic resources on a host."""
        return parse_gres(self.cli("scontrol", "--details", "show", "job", str(job)), host, self.hostnames)

    def batch_sched_delay(self) -> int:
        """For how many seconds at most the scheduler leaves a new batch job alone."""
        return parse_batch_sched_delay(self.cli("scontrol", "show", "config"))

    def version(self) -> str:
        return self.cli("sinfo", "--version").strip()

    def mpi_plugins(self) -> list[str]:
        """By which the ranks of a step find each other; not every Slurm was built with all of them."""
        return self.cli("srun", "--mpi=list", all_streams=True).split()

    def hostnames(self, nodelist: str) -> list[str]:
        """The names behind Slurm's short form of a list of nodes."""
        return self.cli("scontrol", "show", "hostnames", nodelist).split()


def parse_batch_sched_delay(config: str) -> int:
    """From ``scontrol show config``; Slurm's default where a site sets none."""
    found = re.search(r"^SchedulerParameters\s*=.*\bbatch_sched_delay=(\d+)", config, re.MULTILINE)
    return int(found[1]) if found else DEFAULT_BATCH_SCHED_DELAY
