"""Slurm's states of a job, and what they mean for us: the one table."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a state means for whoever waits."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETING = "completing"  # its processes are being ended; what it holds is not free yet
    ENDED = "ended"


class JobState(StrEnum):
    """The states that ``squeue --states=all`` and ``sacct`` show, in their long form."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    POWER_UP_NODE = "POWER_UP_NODE"
    EXPEDITING = "EXPEDITING"  # it is to run again, before others
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    STOPPED = "STOPPED"
    SIGNALING = "SIGNALING"
    RESIZING = "RESIZING"
    STAGE_OUT = "STAGE_OUT"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    PREEMPTED = "PREEMPTED"
    REVOKED = "REVOKED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    RECONFIG_FAIL = "RECONFIG_FAIL"

    @staticmethod
    def parse(text: str) -> JobState:
        """A state as Slurm prints it; ``CANCELLED by 1000`` and a trailing ``+`` occur."""
        return JobState(text.split(maxsplit=1)[0].rstrip("+"))

    @property
    def phase(self) -> Phase:
        return _PHASES.get(self, Phase.ENDED)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the job is left, and the state says how it ended."""
        return self.phase is Phase.ENDED

    @property
    def is_alive(self) -> bool:
        """Whether the job runs or will. One that is completing serves nobody any more."""
        return self.phase in {Phase.WAITING, Phase.RUNNING}


_PHASES = {
    JobState.PENDING: Phase.WAITING,
    JobState.CONFIGURING: Phase.WAITING,
    JobState.REQUEUED: Phase.WAITING,
    JobState.REQUEUE_FED: Phase.WAITING,
    JobState.REQUEUE_HOLD: Phase.WAITING,
    JobState.RESV_DEL_HOLD: Phase.WAITING,
    JobState.SPECIAL_EXIT: Phase.WAITING,
    JobState.POWER_UP_NODE: Phase.WAITING,
    JobState.EXPEDITING: Phase.WAITING,
    JobState.RUNNING: Phase.RUNNING,
    JobState.SUSPENDED: Phase.RUNNING,
    JobState.STOPPED: Phase.RUNNING,
    JobState.SIGNALING: Phase.RUNNING,
    JobState.RESIZING: Phase.RUNNING,
    JobState.STAGE_OUT: Phase.RUNNING,
    JobState.COMPLETING: Phase.COMPLETING,
}
