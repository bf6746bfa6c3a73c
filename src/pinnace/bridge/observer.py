"""Polls a Slurm for the states of all its jobs, once per interval, and notifies when a job's report has changed."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.bridge.crds import MAX_UPDATE_INTERVAL
from pinnace.bridge.slurmjob import allocated
from pinnace.bridge.tags import has_tag, tag_in, tag_of_accounted
from pinnace.errors import PinnaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinnace.slurm.backend import Backend
    from pinnace.slurm.jobs import AccountedJob, QueuedJob

FIRST_POLL_DELAY = 0.2  # seconds between a submission and the first poll
MAX_POLL_INTERVAL = 60.0  # seconds between polls of a Slurm that does not answer
ACCOUNTING_TIMEOUT = 30.0  # seconds that accounting may lag behind
ACCOUNTING_ERROR_TIMEOUT = 3.0  # seconds, where accounting does not work at all

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WatchedJob:
    """A job that is polled. ``key`` names its object, ``tag`` is in its comment."""

    key: str
    tag: str
    id: int
    interval: float


class Observer:
    """The state of the watched jobs of one Slurm, as one of its users."""

    def __init__(self, backend: Backend, notify: Callable[[str], None]) -> None:
        self.backend = backend
        self.error = ""
        self._notify = notify
        self._lock = threading.Lock()
        self._watched: dict[str, WatchedJob] = {}  # by tag
        self._seen: dict[str, float] = {}  # when a poll began that came after the job was watched
        self._reports: dict[str, tuple[QueuedJob, ...]] = {}
        self._ended: dict[str, float] = {}  # since when accounting is asked about a job
        self._accounted: dict[str, tuple[AccountedJob, ...]] = {}
        self._wake = threading.Event()
        self._running = False

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._watched

    def watch(self, job: WatchedJob) -> None:
        """Poll a job from now on. Reports of another job ID under the same tag are dropped."""
        with self._lock:
            known = self._watched.get(job.tag)
            new = known is None or known.id != job.id
            if known and new:
                self._forget(job.tag)
            self._watched[job.tag] = job
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="observer", daemon=True).start()
        if new:
            self._wake.set()

    def forget(self, tag: str) -> None:
        with self._lock:
            self._forget(tag)

    def _forget(self, tag: str) -> None:
        for known in (self._watched, self._seen, self._reports, self._ended, self._accounted):
            known.pop(tag, None)

    def reports(self, tag: str) -> tuple[QueuedJob, ...] | None:
        """What Slurm said last of a job; nothing if it does not know it; None if it was not asked yet."""
        with self._lock:
            return self._reports.get(tag, ()) if tag in self._seen else None

    def accounted(self, tag: str) -> tuple[bool, tuple[AccountedJob, ...]]:
        """Whether all was asked that could be, and what accounting says of a job that has ended."""
        with self._lock:
            if tag in self._accounted:
                return True, self._accounted[tag]
            if tag not in self._ended:
                self._ended[tag] = time.monotonic()
                self._wake.set()
            return False, ()

    def _run(self) -> None:
        """Poll while jobs are watched. Unexpected answers of one Slurm must not stop the others."""
        pause = 0.0
        while True:
            self._wake.wait(pause or None)
            if self._wake.is_set():
                self._wake.clear()
                time.sleep(FIRST_POLL_DELAY)  # for other jobs that are submitted at the same time
            with self._lock:
                watched = dict(self._watched)
                if not watched:
                    self._running, self.error = False, ""
                    return
            normal = min(MAX_UPDATE_INTERVAL, *(job.interval for job in watched.values()))
            try:
                self._poll(watched)
                self._set_error(watched, "")
                pause = normal
            except PinnaceError as error:
                self._set_error(watched, error.message)
                pause = min(max(2 * pause, normal), MAX_POLL_INTERVAL)
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                self._set_error(watched, f"its answer was not understood: {type(error).__name__}")
                pause = MAX_POLL_INTERVAL

    def _poll(self, watched: dict[str, WatchedJob]) -> None:
        begun = time.monotonic()
        found: dict[str, list[QueuedJob]] = {tag: [] for tag in watched}
        for report in self.backend.jobs(has_tag):
            # A tag alone proves nothing: whoever sees a comment can write it too.
            tag = tag_in(report.comment)
            if tag in found and report.id == watched[tag].id:
                found[tag].append(report)
        with self._lock:
            known = {tag: self._reports.get(tag) if tag in self._seen else None for tag in watched}
            still = {tag for tag, job in watched.items() if tag in self._watched and self._watched[tag].id == job.id}
            self._reports |= {tag: tuple(found[tag]) for tag in still}
            self._seen |= dict.fromkeys(still, begun)
            for tag in still & self._ended.keys():
                if any(not report.state.has_ended for report in found[tag]):  # it had not ended: one answer was wrong
                    del self._ended[tag]
            ended = {watched[tag].id: tag for tag in self._ended if tag in still and tag not in self._accounted}
        for tag, reports in found.items():
            if known[tag] != tuple(reports):
                self._notify(watched[tag].key)
        if ended:
            self._account(ended, watched)

    def _account(self, ended: dict[int, str], watched: dict[str, WatchedJob]) -> None:
        timeout = ACCOUNTING_TIMEOUT
        try:
            about = self.backend.accounted(ended)
        except PinnaceError as error:  # do without, unless only accounting knows how a job ended
            log.warning("accounting: %s", error.message)
            about, timeout = {}, ACCOUNTING_ERROR_TIMEOUT
            if not is_disabled(error.message):
                ended = {job: tag for job, tag in ended.items() if self._reports.get(tag)}
        for job, tag in ended.items():
            of_job = about.get(job, ())
            if any(tag_of_accounted(record) not in {tag, ""} for record in of_job):
                of_job = ()  # the number is that of another's job
            complete = bool(of_job) and is_complete(of_job)
            with self._lock:
                if not complete and time.monotonic() - self._ended.get(tag, 0.0) < timeout:
                    continue
                self._accounted[tag] = of_job
            self._notify(watched[tag].key)

    def _set_error(self, watched: dict[str, WatchedJob], error: str) -> None:
        """Notify for all jobs when Slurm stops answering, and when it answers again."""
        if bool(error) != bool(self.error):
            log.warning("Slurm does not answer: %s", error) if error else log.info("Slurm answers again")
            for job in watched.values():
                self._notify(job.key)
        self.error = error


def is_disabled(text: str) -> bool:
    """Whether a site has no accounting, in the words of sacct and slurmrestd: nobody will know more, then."""
    return "accounting storage is disabled" in text.lower()


def is_complete(accounted: Sequence[AccountedJob]) -> bool:
    """Whether accounting knows all of a job: of short ones it may hear the end before the start."""
    begun = any(job.start for job in accounted)
    return all(job.end for job in accounted) and bool(allocated(accounted) or not begun)
