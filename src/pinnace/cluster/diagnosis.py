"""Why a cluster does not start, or has ended: from its nodes' records, its logs and its job."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pinnace.cluster.cluster_job import Place
from pinnace.cluster.directory import require_free_space
from pinnace.components.store import explain_no_space
from pinnace.errors import ClusterError, SlurmError
from pinnace.slurm.commands import REFUSED
from pinnace.slurm.states import JobState
from pinnace.slurm.times import format_local
from pinnace.spec import HEAD

if TYPE_CHECKING:
    from pinnace.cluster.cluster_job import ClusterJob
    from pinnace.slurm.jobs import QueuedJob

EXITED = {JobState.COMPLETED, JobState.FAILED}  # the job's script ended; neither Slurm nor the user ended it
MIN_FREE_BYTES = 1 << 20  # a file system with fewer has cut something short
TAIL_LINES = 15


# What a user can do about Slurm's reason to let a job wait, by a word of the reason.
PENDING_ADVICE = {
    "maintenance": "it could run before that with a shorter time limit (-t)",
    "partitiontimelimit": "the partition allows less time (-t)",
    "jobheld": "it was held: `scontrol release` lets it go on",
}


class Diagnosis:
    """The checks that raise an error which says why there is nothing to wait for any more."""

    def __init__(self, job: ClusterJob, nodes: int, *, keeps_logs: bool) -> None:
        self.was_ready = False
        self._job = job
        self._directory = job.directory
        self._nodes = nodes
        self._keeps_logs = keeps_logs

    def check_alive(self) -> None:
        """Raise if what runs the cluster has ended, or its head has failed."""
        self._check_node(HEAD)
        if not self._job.is_running():
            self.check_nodes()  # one may have recorded a failure just before the end
            self.check_time()
            raise self._ended()

    def _ended(self) -> ClusterError | SlurmError:
        """What to say of a cluster whose job has ended and whose nodes give no reason."""
        path, place = self._directory.path, self._job.place
        job = self._job.wait_final_state()
        silent = not self._directory.any_node_reported
        if silent and job is None and place is Place.INTERACTIVE and self._job.process:
            return SlurmError(f"Slurm did not take the job\n{self.tail()}", hint=REFUSED)
        message, hint = describe_end(self._directory.name, job, ready=self.was_ready)
        if silent and (place is Place.ALLOCATION or (job and job.state in EXITED)):
            message += f"\nNothing was heard from its nodes: do they see the same {path.parent}?"
            hint = "PINNACE_HOME has to be on a file system that all nodes share. See `pinnace doctor --on-node`."
        with explain_no_space(path, "the cluster"):
            require_free_space(path.parent, MIN_FREE_BYTES)
        return ClusterError(f"{message}\n{self.tail()}".strip(), hint=hint or self.where_logs())

    def check_time(self) -> None:
        """Raise if the cluster ends because its job's time is over."""
        if limit := self._directory.time_is_over:
            before = "" if self.was_ready else " before it was ready"
            raise ClusterError(f"the time limit ({limit}) ended the cluster{before}", hint="Give it more time with -t.")

    def check_nodes(self) -> None:
        """Raise if a node has recorded that it failed."""
        for index in self._directory.reported(self._nodes):
            self._check_node(index)

    def _check_node(self, index: int) -> None:
        if failure := self._directory.failure(index):
            message, hint = failure
            raise ClusterError(message, hint=hint or self.where_logs())

    def where_logs(self) -> str:
        if self._keeps_logs:
            return f"Its logs are in {self._directory.path / 'logs'}."
        return "Keep its logs with --retain."

    def tail(self) -> str:
        """The last lines of the logs that tell why a cluster did not start."""
        logs = self._directory.path / "logs"
        for log in [*sorted(logs.glob("agent-*.log")), logs / "job.log"]:
            with contextlib.suppress(OSError):
                lines = log.read_text(errors="replace").strip().splitlines()
                if lines:
                    return "\n".join(lines[-TAIL_LINES:])
        return ""


def describe_pending(job: QueuedJob) -> str:
    """What Slurm says of a job that waits."""
    start = f", expected to start {format_local(job.start)}" if job.start else ""
    advice = next((f"; {text}" for word, text in PENDING_ADVICE.items() if word in job.reason.lower()), "")
    return f"job {job.id} is {job.state.lower()} in {job.partition} ({job.reason}){start}{advice}"


def describe_end(name: str, job: QueuedJob | None, *, ready: bool) -> tuple[str, str]:
    """Why a cluster has ended that should not have, and what to do about it."""
    before = "" if ready else " before the cluster was ready"
    match job.state if job else None:
        case JobState.TIMEOUT if job:
            return f"the time limit ({job.time_limit}) ended the job {job.id}{before}", "Give it more time with -t."
        case JobState.OUT_OF_MEMORY if job:
            return f"the job {job.id} used more memory than it had{before}", "Give it more memory with --mem."
        case JobState.CANCELLED | JobState.PREEMPTED | JobState.NODE_FAIL if job:
            end = {JobState.NODE_FAIL: "ended, because a host failed"}.get(job.state, f"was {job.state.lower()}")
            return f"the job {job.id} {end}{before}", ""
        case None:
            return f"the cluster {name} has ended{before}", ""
        case state:
            return f"the job of the cluster {name} has ended{before} ({state})", ""
