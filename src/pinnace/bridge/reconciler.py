"""What is done for a SlurmJob: the next step from what is, on both sides, to what should be.

The order that loses no job and doubles none:

1. the object gets our finalizer and, in the same write, the note that this attempt is about to be submitted;
2. the job is submitted, with a tag in its comment that follows from the object's uid and the attempt;
3. its number is written to the object's status.

Whoever finds the note and no number asks Slurm, and then accounting, for the tag before submitting again. The first
write says which version of the object it has seen, so of two that try only one goes on.

A job is cancelled, held or adopted only if Slurm says that it is of our user, has the number that we noted, and the tag
of this very object: numbers and notes in objects can be written by whoever may change these.
"""

from __future__ import annotations

import http
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pinnace.bridge import files, staging
from pinnace.bridge.helpers import HelperPods
from pinnace.bridge.observer import WatchedJob
from pinnace.bridge.options import from_fields
from pinnace.bridge.slurmjob import (
    ABANDON,
    DEFAULT_OUTPUT,
    FINALIZER,
    INTENT,
    SlurmJob,
    changed,
    exit_of,
    is_over,
    observed,
    output_path,
    seconds_of,
    usage,
)
from pinnace.bridge.tags import has_tag, tag_in, tag_of_accounted, tagged
from pinnace.errors import ApiError, MissingError, PinnaceError, S3TransientError, SlurmUnreachableError, StagingError
from pinnace.kube.client import ignoring, timestamp
from pinnace.kube.conditions import with_condition
from pinnace.slurm.allowed_options import SLURMJOB, check_slurmjob
from pinnace.slurm.backend import JobDescription
from pinnace.slurm.options import parse
from pinnace.slurm.scripts import directives
from pinnace.slurm.states import JobState, Phase
from pinnace.validation import plain, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinnace.bridge.connections import Connection, Connections
    from pinnace.bridge.pods import PodUser
    from pinnace.bridge.slurmjob import Object
    from pinnace.kube.client import Api
    from pinnace.slurm.backend import Backend
    from pinnace.slurm.jobs import JobRecord, QueuedJob

RECHECK_DELAY = 1.0  # seconds until something is looked at again for which no event comes
EVENT_FALLBACK_DELAY = 15.0  # the same where an event will come, in case that it is missed
SUBMISSION_LIMIT = 10.0  # seconds after which a submission that was cut off is either known to Slurm or never will be
FAILED = "REJECTED"  # the state of a job that Slurm never took
LONGEST_PATH = 1000  # characters of a path that is given
SHOWN_PATH = 4000  # of one in the status

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BridgeSettings:
    """``image`` is that of the helper pods, of which there are none without; at most ``pods`` follow logs at once.

    They run with ``pod_user``, or without one as root, which is the bridge's user in a cluster of pinnace's.
    """

    interval: float = 2.0
    image: str = ""
    pods: int = 20
    pod_user: PodUser | None = None


class Waiting(Exception):  # noqa: N818 - not an error: nothing to do until later
    """Look again after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Reconciler:
    """Knows one step at a time."""

    def __init__(
        self,
        api: Callable[[], Api],
        slurms: Connections,
        settings: BridgeSettings,
        *,
        find: Callable[[str], SlurmJob | None],
        note: Callable[[Object], None],
        others: Callable[[SlurmJob], int],
    ) -> None:
        """``others`` tells how many other jobs of a job's namespace Slurm has."""
        self._api_of_thread, self._slurms, self._settings, self._find, self._note = api, slurms, settings, find, note
        self._others, self._policy = others, slurms.policy
        self._helpers = HelperPods(
            api, slurms.policy, image=settings.image, max_logs=settings.pods, user=settings.pod_user
        )

    @property
    def api(self) -> Api:
        return self._api_of_thread()

    def step(self, job: SlurmJob) -> float | None:
        """Do what is to be done for a job now. Seconds until it should be looked at again; None: when it changes.

        What may pass is raised when it has been said, to be tried again later each time.
        """
        try:
            if job.deleted:
                self._release(job)
            elif job.finished:
                self._afterwards(job)
            elif job.id is None:
                self._begin(job)
            else:
                self._follow(job, job.id)
        except Waiting as wait:
            return wait.seconds
        except SlurmUnreachableError as error:
            self._condition(job, "Reachable", "False", "Unreachable", error.message)
            raise
        return None

    # --- before Slurm knows it ----------------------------------------------------------------------------------

    def _begin(self, job: SlurmJob) -> None:
        if job.intent and self._adopted(job, job.intent):
            return
        if job.spec.get("cancel"):
            self._finish(job, succeeded=False, reason="Cancelled", state=str(JobState.CANCELLED))
            return
        if job.spec.get("suspend"):
            self._patch(job, {"state": "SUSPENDED", "reason": "JobSuspended"})
            return
        native = self._dependencies(job)
        if self._others(job) >= self._policy.jobs:
            self._wait_for_others(job)
        try:
            connection = self._slurms.of(job)
            submission = self._submission(job, connection.backend)
            if waiting := self._stage(job, connection.backend, str(submission.options["chdir"])):
                self._patch(job, {"state": "STAGING", "message": waiting})
                raise Waiting(RECHECK_DELAY)
            job = self._announce(job, str(submission.options["job-name"]))
            number = connection.backend.submit(depending(submission, native))
        except MissingError as error:
            self._patch(job, {"state": "WAITING", "reason": "Missing", "message": error.message})
            raise Waiting(RECHECK_DELAY) from error
        except (SlurmUnreachableError, S3TransientError) as error:
            raise SlurmUnreachableError(error.message) from error
        except ApiError:
            raise  # tried again: it says nothing of the job
        except PinnaceError as error:
            self._finish(job, succeeded=False, reason="Rejected", message=error.message, state=FAILED)
            return
        log.info("%s: submitted as job %d", job.key, number)
        self._submitted(job, connection, submission, number)

    def _wait_for_others(self, job: SlurmJob) -> NoReturn:
        """A note under which nothing was submitted is taken back: it would count as a job in Slurm, for the others."""
        if job.intent:
            metadata = {"resourceVersion": job.metadata["resourceVersion"], "annotations": {INTENT: None}}
            job = self._noted(self.api.patch(job.path(), {"metadata": metadata}))
        message = f"{self._policy.jobs} jobs of namespace {job.namespace} are in Slurm, which is the most"
        self._patch(job, {"state": "WAITING", "reason": "TooManyJobs", "message": message})
        raise Waiting(EVENT_FALLBACK_DELAY)

    def _announce(self, job: SlurmJob, name: str) -> SlurmJob:
        """The note and the finalizer, in one write that fails if the object has changed since."""
        metadata = {
            "resourceVersion": job.metadata["resourceVersion"],
            "finalizers": sorted({*job.metadata.get("finalizers", ()), FINALIZER}),
            "annotations": {INTENT: f"{job.attempt} {int(time.time())} {name}"},
        }
        return self._noted(self.api.patch(job.path(), {"metadata": metadata}))

    def _adopted(self, job: SlurmJob, intent: tuple[int, str]) -> bool:
        """Whether a job was submitted by one that died before it could say so; if so, it is ours from now on."""
        connection = self._slurms.of(job, known=True)
        number = self._lookup(job, connection.backend, intent)
        if number is None:
            return False
        log.info("%s: found again as job %d", job.key, number)
        try:
            submission = self._submission(job, connection.backend)
        except ApiError:
            raise
        except PinnaceError:  # its script or its variables have gone meanwhile: it runs all the same
            self._patch(job, {"attempt": job.attempt, "jobID": number, "state": str(JobState.PENDING)})
        else:
            self._submitted(job, connection, submission, number)
        return True

    @staticmethod
    def _lookup(job: SlurmJob, backend: Backend, intent: tuple[int, str]) -> int | None:
        """The number of the job that was to be submitted, if it was."""
        since, name = intent
        for report in Reconciler._proven(job, backend):
            return report.id
        number = backend.recall(lambda found: tag_of_accounted(found) == job.tag, name=name, since=since)
        age = time.time() - since
        if number is None and age < SUBMISSION_LIMIT:
            raise Waiting(max(RECHECK_DELAY, -age))  # the dead one's sbatch may still be on its way
        return number

    @staticmethod
    def _proven(job: SlurmJob, backend: Backend) -> list[QueuedJob]:
        """What Slurm has of our user's under the tag of this object."""
        found = backend.jobs(has_tag)
        return [report for report in found if tag_in(report.comment) == job.tag and report.user == backend.user]

    def _dependencies(self, job: SlurmJob) -> list[str]:
        """What Slurm itself is to wait for. What it cannot know, such as results, is waited for here."""
        native = []
        for dependency in job.spec.get("dependsOn", ()):
            other = self._find(f"{job.namespace}/{dependency['name']}")
            if other is None or (not other.finished and not self._leave_to_slurm(job, other)):
                self._patch(job, {"state": "WAITING", "reason": "Dependency", "message": f"for {dependency['name']}"})
                raise Waiting(EVENT_FALLBACK_DELAY)  # its change wakes us before
            kind = dependency.get("type", "afterok")
            if not other.finished:
                native.append(f"{kind}:{other.id}")
            elif kind != "afterany" and other.succeeded is not (kind == "afterok"):
                message = f"{dependency['name']} has {'succeeded' if other.succeeded else 'failed'}"
                self._finish(job, succeeded=False, reason="DependencyFailed", message=message, state=FAILED)
                raise Waiting(EVENT_FALLBACK_DELAY)
        return native

    @staticmethod
    def _leave_to_slurm(job: SlurmJob, other: SlurmJob) -> bool:
        simple = not other.spec.get("results") and not other.spec.get("retries")
        return simple and other.id is not None and other.spec.get("cluster") == job.spec.get("cluster")

    def _submission(self, job: SlurmJob, backend: Backend) -> JobDescription:
        """Everything that goes to Slurm. The script's own directives are the least, flags the last word."""
        script = staging.script_of(self.api, job, self._policy, visible=backend.files)
        given = directives(script) | from_fields(job.spec.get("options", {}))
        given = check_slurmjob(given | parse(job.spec.get("flags", ()), SLURMJOB), self._policy.options)
        for name in ("chdir", "output", "error", "input"):
            plain(f"--{name}", given.get(name) or "", most=LONGEST_PATH)
        directory = given.get("chdir") or default_directory(job, backend)
        directory = str(files.absolute_path(directory)) if backend.files else directory
        given["chdir"] = plain("the working directory", directory, most=LONGEST_PATH)
        given.setdefault("job-name", job.name)
        given.setdefault("output", DEFAULT_OUTPUT["array" in given])
        environment = staging.environment_of(self.api, job)
        arguments = tuple(job.spec.get("arguments", ()))
        if not backend.files:
            script = staging.wrap_with_transfers(self.api, job, self._policy, script)
        staging.check_size(script, environment, arguments)
        return JobDescription(
            script=script, arguments=arguments, options=tagged(given, job.tag), environment=environment
        )

    def _stage(self, job: SlurmJob, backend: Backend, directory: str) -> str:
        """Make the job's directory as the job wants it. What that waits for."""
        if not backend.files:
            return ""  # the job does it
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StagingError(f"working directory: {error}") from error
        if job.intent:  # it was, before it was to be submitted
            return ""
        for number, entry in enumerate(job.spec.get("inputs", ())):
            if "volume" in entry:
                self._policy.check_volume(entry["volume"])
                target = staging.directory_in(Path(directory), entry["to"])
                from_volume = {"directory": target, "entry": entry, "what": ["."], "out": False}
                if waiting := self._helpers.copy(job, f"{job.name}-input-{number}", from_volume):
                    return waiting
        staging.stage(self.api, job, self._policy, Path(directory))
        return ""

    def _submitted(self, job: SlurmJob, connection: Connection, submission: JobDescription, number: int) -> None:
        given, backend = submission.options, connection.backend
        directory, name = str(given["chdir"]), str(given["job-name"])
        output, error = (
            output_path(pattern, directory, job=number, name=name, user=backend.user, glob="array" in given)
            if pattern
            else None
            for pattern in (given.get("output"), given.get("error"))
        )
        conditions = with_condition(job.conditions, "Submitted", "True", "Submitted", f"job {number}")
        if unseen := self._helpers.log_refusal(job, backend):
            conditions = with_condition(conditions, "Logs", "False", "Unseen", f"output is in {output}: {unseen}")
        patch: Object = {
            "attempt": job.attempt,
            "jobID": number,
            "state": str(JobState.PENDING),
            "reason": None,
            "message": None,
            "user": backend.user,
            "workingDirectory": directory,
            "stdout": output and output[:SHOWN_PATH],
            "stderr": error and error[:SHOWN_PATH],
            "conditions": conditions,
        }
        self._patch(job, patch)
        self._helpers.forget(job, backend)
        self._watch(job, connection, number)

    # --- while Slurm has it -------------------------------------------------------------------------------------

    def _watch(self, job: SlurmJob, connection: Connection, number: int) -> None:
        interval = max(self._settings.interval, job.spec.get("updateIntervalSeconds", 0.0))
        connection.observer.watch(WatchedJob(key=job.key, tag=job.tag, id=number, interval=interval))

    def _follow(self, job: SlurmJob, number: int) -> None:
        connection = self._slurms.of(job, known=True)
        observer = connection.observer
        self._watch(job, connection, number)
        reports = observer.reports(job.tag)
        if observer.error:
            raise SlurmUnreachableError(observer.error)
        if job.condition("Reachable") == "False":
            job = self._condition(job, "Reachable", "True", "Reachable")
        if reports is None:
            return  # the observer tells
        if not reports or is_over(reports):
            self._ended(job, connection, reports)
            return
        job = self._patch(job, observed(reports))
        self._apply_spec(job, connection.backend, reports)
        if "startTime" in job.status and (refusal := self._helpers.follow(job, connection.backend)):
            self._condition(job, "Logs", "False", "Refused", refusal)

    def _apply_spec(self, job: SlurmJob, backend: Backend, reports: Sequence[JobRecord]) -> None:
        """Bring about what the spec wants of a job that is under way: the one that Slurm has reported."""
        number = reports[0].id
        if job.spec.get("cancel"):
            backend.cancel(number)
            return
        wanted, held = bool(job.spec.get("suspend")), bool(job.status.get("held"))
        if wanted == held:
            return
        if any(report.state.phase is Phase.RUNNING for report in reports):
            backend.stop(number, stopped=wanted)
        if any(report.state.phase is Phase.WAITING for report in reports):
            backend.hold(number, held=wanted)
        self._patch(job, {"held": wanted})

    def _ended(self, job: SlurmJob, connection: Connection, reports: Sequence[JobRecord]) -> None:
        """A job has ended, or Slurm knows it no longer; accounting has the last word, if there is any."""
        asked, about = connection.observer.accounted(job.tag)
        if not asked:
            if reports:
                self._patch(job, observed(reports))
            raise Waiting(EVENT_FALLBACK_DELAY)  # the observer tells
        # slurmctld knows best how a job has ended, until it forgets tasks of a long array.
        final = about if len(about) > len(reports) else reports
        if not final:
            self._finish(job, succeeded=False, reason="Lost", message="Slurm knows nothing of this job any more")
            return
        status = observed(final) | ({"usage": usage(about)} if about else {})
        succeeded = all(report.state is JobState.COMPLETED for report in final)
        job = self._patch(job, status)
        if not succeeded and not job.spec.get("cancel") and job.attempt <= job.spec.get("retries", 0):
            connection.observer.forget(job.tag)
            conditions = with_condition(
                job.conditions, "Retrying", "True", str(status["state"]), f"attempt {job.attempt} failed"
            )
            empty = dict.fromkeys(("jobID", "startTime", "endTime", "exitCode", "signal", "exit", "nodes", "usage"))
            self._patch(job, {**empty, "attempt": job.attempt + 1, "state": "RETRYING", "conditions": conditions})
            return
        reason, message = ("Completed", "") if succeeded else (camel(str(status["state"])), str(status["reason"] or ""))
        if job.spec.get("results"):
            job, failure = self._collect(job, connection.backend)
            if failure and succeeded:
                succeeded, reason, message = False, "ResultsMissing", failure
        if refusal := self._helpers.end(job, connection.backend, exit_of(final)):
            job = self._condition(job, "Logs", "False", "Refused", refusal)
        connection.observer.forget(job.tag)
        self._finish(job, succeeded=succeeded, reason=reason, message=message)

    # --- after its end ------------------------------------------------------------------------------------------

    def _collect(self, job: SlurmJob, backend: Backend) -> tuple[SlurmJob, str]:
        """Bring the results home. What went wrong, for good."""
        failure = ""
        try:
            if backend.files:
                self._collect_files(job, files.absolute_path(job.status.get("workingDirectory", "")))
            else:
                staging.check_uploaded(self.api, job, self._policy)
        except (S3TransientError, MissingError) as error:
            self._condition(job, "Collected", "False", "Retrying", error.message)
            raise Waiting(EVENT_FALLBACK_DELAY) from error
        except ApiError:
            raise
        except PinnaceError as error:
            failure = error.message
        reason = "Failed" if failure else "Collected"
        return self._condition(job, "Collected", str(not failure), reason, failure), failure

    def _collect_files(self, job: SlurmJob, directory: Path) -> None:
        for number, entry in enumerate(job.spec["results"]):
            if "volume" in entry:
                what = staging.matches(directory, entry["from"])
                to_volume = {"directory": str(directory), "entry": entry, "what": what, "out": True}
                if waiting := self._helpers.copy(job, f"{job.name}-result-{number}", to_volume):
                    self._condition(job, "Collected", "False", "Copying", waiting)
                    raise Waiting(RECHECK_DELAY)
        staging.collect(self.api, job, self._policy, directory)

    def _afterwards(self, job: SlurmJob) -> None:
        if FINALIZER in job.metadata.get("finalizers", ()):
            job = self._without_finalizer(job)
        ttl = job.spec.get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        left = ttl - (time.time() - seconds_of(job.status["completionTime"]))
        if left > 0:
            raise Waiting(left)
        self._delete(job)

    def _release(self, job: SlurmJob) -> None:
        """Nothing of an object that goes stays in Slurm; then it may go."""
        if FINALIZER not in job.metadata.get("finalizers", ()):
            return
        abandoned = job.metadata.get("annotations", {}).get(ABANDON) == "true"
        if not abandoned and not job.finished and (job.intent or job.id is not None):  # a note can be taken off
            self._cancel(job)
        with ignoring(http.HTTPStatus.NOT_FOUND):
            self._without_finalizer(job)

    def _without_finalizer(self, job: SlurmJob) -> SlurmJob:
        """What Slurm has no more part in may go at any time, with us or without."""
        others = [name for name in job.metadata["finalizers"] if name != FINALIZER]
        metadata = {"finalizers": others, "resourceVersion": job.metadata["resourceVersion"]}
        return self._noted(self.api.patch(job.path(), {"metadata": metadata}))

    def gone(self, job: SlurmJob) -> None:
        """Forget a job whose object is gone."""
        for connection in self._slurms.all():
            connection.observer.forget(job.tag)
            self._helpers.forget(job, connection.backend)

    def _cancel(self, job: SlurmJob) -> None:
        """End a job in Slurm; returns when that has happened."""
        connection, number = self._slurms.of(job, known=True), job.id
        if number is None and job.intent:
            number = self._lookup(job, connection.backend, job.intent)
        if number is None:
            return
        self._watch(job, connection, number)
        reports = connection.observer.reports(job.tag)
        if connection.observer.error:
            raise SlurmUnreachableError(connection.observer.error)
        if reports is None:
            raise Waiting(EVENT_FALLBACK_DELAY)  # the observer tells
        # Without a report of that number it is not ours to cancel; the object's own job may have another one.
        ours = reports or self._proven(job, connection.backend)
        alive = {report.id for report in ours if not is_over([report])}
        for found in alive:
            connection.backend.cancel(found)
        if alive:
            raise Waiting(EVENT_FALLBACK_DELAY)

    # --- writing ------------------------------------------------------------------------------------------------

    def _finish(self, job: SlurmJob, *, succeeded: bool, reason: str, message: str = "", state: str = "") -> None:
        kind, message = "Complete" if succeeded else "Failed", printable(message)
        patch: Object = {
            "completionTime": timestamp(),
            "message": message or None,
            "conditions": with_condition(job.conditions, kind, "True", reason, message),
        }
        if state:
            patch |= {"state": state, "reason": reason}
        log.info("%s: %s %s", job.key, reason, message)
        self._patch(job, patch)

    def _condition(self, job: SlurmJob, kind: str, status: str, reason: str, message: str = "") -> SlurmJob:
        return self._patch(job, {"conditions": with_condition(job.conditions, kind, status, reason, message)})

    def _patch(self, job: SlurmJob, status: Object) -> SlurmJob:
        """Write what of a status is not so already."""
        patch = changed(job.status, status)
        if not patch:
            return job
        return self._noted(self.api.patch(job.path("status"), {"status": patch}))

    def _noted(self, body: Object) -> SlurmJob:
        """Remember what a write has led to: its event may come after the next look."""
        self._note(body)
        return SlurmJob(body)

    def _delete(self, job: SlurmJob) -> None:
        self.api.delete_if_there(job.path(), {"preconditions": {"uid": job.uid}})


def default_directory(job: SlurmJob, backend: Backend) -> str:
    """One for each job where we can make it."""
    base = backend.directory
    return str(Path(base) / job.namespace / f"{job.name}-{job.uid[:8]}") if backend.files else base


def depending(submission: JobDescription, native: Sequence[str]) -> JobDescription:
    """With what Slurm is to wait for. A job whose condition cannot come true any more ends, instead of waiting."""
    if not native:
        return submission
    mine = submission.options.get("dependency")
    together = ",".join([*([mine] if mine else []), *native])
    return replace(submission, options=submission.options | {"dependency": together, "kill-on-invalid-dep": "yes"})


def camel(text: str) -> str:
    """A reason as Kubernetes writes them: OUT_OF_MEMORY is OutOfMemory."""
    return text.title().replace("_", "")
