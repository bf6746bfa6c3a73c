"""A SlurmJob as an object of the API, and what its status says: pure functions over what Slurm reports."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pinnace.bridge.crds import SLURMJOB
from pinnace.bridge.tags import tag
from pinnace.slurm.states import JobState, Phase
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.slurm.jobs import AccountedJob, JobRecord

Object = dict[str, Any]

FINALIZER = "pinnace.dev/slurm"
INTENT = "pinnace.dev/submitting"  # "<attempt> <seconds since 1970> <name>", written before the submission
ABANDON = "pinnace.dev/abandon"  # "true": let the object go even if its Slurm cannot be asked
NOTE = re.compile(r"(?P<attempt>\d{1,6}) (?P<since>\d{1,12}) (?P<name>.*)", re.DOTALL)
SKEW = 300.0  # seconds that clocks may differ
WIDEST = 10  # digits that Slurm pads a number in a file name to
DEFAULT_OUTPUT = ("slurm-%j.out", "slurm-%A_%a.out")  # sbatch's own, for a job and for an array
# Of several tasks' ends the one that is told: what went wrong before what went right.
ORDER = (JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY, JobState.FAILED, JobState.TIMEOUT,
         JobState.DEADLINE, JobState.PREEMPTED, JobState.CANCELLED)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A SlurmJob."""

    body: Object

    @property
    def metadata(self) -> Object:
        found: Object = self.body["metadata"]
        return found

    @property
    def spec(self) -> Object:
        found: Object = self.body["spec"]
        return found

    @property
    def status(self) -> Object:
        found: Object = self.body.get("status") or {}
        return found

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata["namespace"])

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])

    @property
    def attempt(self) -> int:
        return int(self.status.get("attempt", 1))

    @property
    def tag(self) -> str:
        return tag(self.uid, self.attempt)

    @property
    def id(self) -> int | None:
        number: int | None = self.status.get("jobID")
        return number

    @property
    def intent(self) -> tuple[int, str] | None:
        """When the present attempt was about to be submitted, and under which name, if it was."""
        note = self.metadata.get("annotations", {}).get(INTENT, "")
        found = NOTE.fullmatch(note)
        if not found or int(found["attempt"]) != self.attempt:
            return None
        # Whoever may change the object may write another note: accounting is never asked about more than its life,
        # and nobody waits for a time that is further ahead than the clock of another bridge could be.
        since, created = int(found["since"]), int(seconds_of(self.metadata["creationTimestamp"]))
        return since if created <= since <= time.time() + SKEW else created, found["name"]

    @property
    def deleted(self) -> bool:
        return "deletionTimestamp" in self.metadata

    @property
    def finished(self) -> bool:
        return "completionTime" in self.status

    @property
    def succeeded(self) -> bool:
        return self.finished and self.condition("Complete") == "True"

    @property
    def conditions(self) -> list[Object]:
        found: list[Object] = self.status.get("conditions", [])
        return found

    def condition(self, kind: str) -> str:
        found = (condition["status"] for condition in self.conditions if condition["type"] == kind)
        return next(found, "Unknown")

    def path(self, part: str = "") -> str:
        return SLURMJOB.path(self.namespace, self.name, part)

    def owner(self) -> Object:
        """For what is made for a SlurmJob and goes with it."""
        return owner_of(self.body)


def owner_of(body: Object) -> Object:
    metadata = body["metadata"]
    about = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return about | {"controller": True}


def stamp(seconds: int) -> str | None:
    """A time as Kubernetes writes it; None, which a patch removes, if it is unknown."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def seconds_of(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def overall(reports: Sequence[JobRecord]) -> JobState:
    """The state of a job, or of an array as a whole."""
    states = [report.state for report in reports]
    for phase in (Phase.RUNNING, Phase.WAITING, Phase.COMPLETING):
        for state in states:
            if state.phase is phase:
                return state
    return next((state for state in ORDER if state in states), states[0])


def is_over(reports: Sequence[JobRecord]) -> bool:
    return all(report.state.has_ended for report in reports)


def exit_of(reports: Sequence[JobRecord]) -> tuple[int, int]:
    """Exit code and signal: of several tasks, those of the one that tells most."""
    worst = max((report.status for report in reports if report.state.has_ended), default=0)
    return worst >> 8, worst & 0x7F


def observed(reports: Sequence[JobRecord]) -> Object:
    """The part of the status that follows from what Slurm says. None is for what is to be removed."""
    state, over = overall(reports), is_over(reports)
    reason = next((report.reason for report in reports if report.state is state), "")
    first = reports[0]
    begun = [report.start for report in reports if report.state.phase is not Phase.WAITING and report.start]
    expected = [report.start for report in reports if report.state.phase is Phase.WAITING and report.start]
    code, number = exit_of(reports) if over else (None, None)
    tasks = None
    if any(report.task for report in reports):
        counts = Counter(_task_state(report) for report in reports)
        tasks = {name: counts[name] for name in ("pending", "running", "succeeded", "failed")}
    return {
        "state": str(state),
        "reason": None if reason == "None" else printable(reason, 200) or None,
        "nodes": printable(",".join(dict.fromkeys(report.nodes for report in reports if report.nodes)), 2000) or None,
        "nodeCount": max(report.node_count for report in reports) or None,
        "submitTime": stamp(first.submitted),
        "expectedStart": None if begun or over else stamp(min(expected, default=0)),
        "startTime": stamp(min(begun, default=0)),
        "endTime": stamp(max(report.end for report in reports)) if over else None,
        "exitCode": code,
        "signal": number or None,
        "exit": None if code is None else f"{code}:{number}" if number else str(code),
        "tasks": tasks,
    }


def _task_state(report: JobRecord) -> str:
    if report.state.has_ended:
        return "succeeded" if report.state is JobState.COMPLETED else "failed"
    return "pending" if report.state.phase is Phase.WAITING else "running"


def usage(accounted: Sequence[AccountedJob]) -> Object:
    """What a job took, tasks of an array taken together."""
    return {
        "elapsedSeconds": sum(job.elapsed for job in accounted),
        "cpuSeconds": round(sum(job.cpu for job in accounted), 3),
        "maxRSSBytes": max(job.memory for job in accounted),
        "tres": printable(allocated(accounted)),
    }


def allocated(accounted: Sequence[AccountedJob]) -> str:
    """The trackable resources of a job, or of each task of an array."""
    return next((job.tres for job in accounted if job.tres), "")


def changed(status: Object, patch: Object) -> Object:
    """What of a patch is not so already."""
    return {
        key: value for key, value in patch.items() if (status.get(key) != value if value is not None else key in status)
    }


def output_path(pattern: str, directory: str, *, job: int, name: str, user: str, glob: bool = False) -> str:
    """Where sbatch's pattern of a file name leads; with ``glob``, for all tasks of an array."""
    known = {"%": "%", "A": str(job), "j": "*" if glob else str(job), "a": "*" if glob else "4294967294",
             "x": name, "u": user}  # fmt: skip
    text, characters = "", iter(pattern)
    for character in characters:
        if character != "%":
            text += character
            continue
        width, word = "", next(characters, "")
        while word.isascii() and word.isdigit():  # as in %4j
            width, word = width + word, next(characters, "")
        value = known.get(word, "*")
        text += value.zfill(min(int(width[:4]), WIDEST)) if width and value.isdigit() else value
    return str(PurePosixPath(directory) / text)
