"""The provisioner as a process: hears what Kubernetes says, asks Slurm, and does what is to be done.

    python -m pinnace.podjobs.controller --cluster DIRECTORY

It runs on the head's host, outside the fabric, because Slurm's commands need the host's network. Whatever it knows, it
can find again: it may be killed at any moment.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.errors import ApiError, ClusterError, PinnaceError, UsageError
from pinnace.kube.cache import Cache, uid
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE, Api, timestamp
from pinnace.kube.events import NORMAL
from pinnace.kube.pods import is_terminal
from pinnace.kube.watch import Changed, end_with_thread, watch
from pinnace.podjobs import elastic, head_access, reconciler, refusals
from pinnace.podjobs.action_runner import ActionRunner
from pinnace.podjobs.actions import Submit, Tell
from pinnace.podjobs.backlog import Backlog
from pinnace.podjobs.pod_api import PodApi
from pinnace.podjobs.reconciler import MARK, NUMBER, Memory, World, is_ours, plan
from pinnace.podjobs.settings import PodJobSettings
from pinnace.podjobs.submission import claimed, submission
from pinnace.slurm.commands import Slurm
from pinnace.slurm.pacing import IDLE_SQUEUE_INTERVAL, SQUEUE_INTERVAL, squeue_interval
from pinnace.slurm.variables import submission_environment
from pinnace.spec import ClusterSpec, NodeRecord
from pinnace.spec.records import indices
from pinnace.timeline.recorder import MarkEvent, Recorder, StepName, submission_marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pinnace.kube.access import Access
    from pinnace.kube.watch import Listed
    from pinnace.slurm.jobs import QueuedJob

    Object = dict[str, Any]

PODS, NODES = "pods", "nodes"
SUBMIT_THREADS = 8  # sbatch calls at a time
PASS_INTERVAL = 0.1  # seconds between passes while much happens; what comes alone has its pass at once
REPORT_INTERVAL = 10.0  # seconds between log lines about how long a pass takes
API_INTERVAL = 0.05  # seconds between tries to reach the API at the start
API_LIMIT = 120.0  # seconds for all of them

log = logging.getLogger("pinnace.podjobs")


def states(jobs: Iterable[QueuedJob]) -> set[tuple[int, str]]:
    """What of a queue has to change for it to count as changed."""
    return {(job.id, job.state) for job in jobs}


def progress(pod: Object) -> tuple[str | None, str | None, bool]:
    return pod["status"].get("phase"), pod["spec"].get("nodeName"), "deletionTimestamp" in pod["metadata"]


class PodJobController:
    """One cluster's provisioner."""

    def __init__(self, spec: ClusterSpec, access: Access) -> None:
        if spec.provisioning is None:
            raise UsageError("this cluster has no provisioner")
        self.spec, self.provisioning = spec, spec.provisioning
        self.settings = PodJobSettings.from_json(spec.provisioning.settings)
        self.access = access
        self.slurm = Slurm()
        self.memory = Memory()
        self.backlog = Backlog()
        self.files: dict[int, NodeRecord] = {}  # as they were when Slurm was asked
        self.jobs: list[QueuedJob] | None = None
        self.cache = Cache(PODS, NODES, key=uid)
        self.asked = 0.0
        self.next_squeue = 0.0
        self.changed = 0.0  # when something has changed that a job may follow, or has followed
        self.reported = 0.0
        self.stepped = 0.0
        self.news: queue.Queue[Listed | Changed | Callable[[], None]] = queue.Queue()
        self.pool = ThreadPoolExecutor(SUBMIT_THREADS, thread_name_prefix="submit")
        self.local = threading.local()
        self.actions = ActionRunner(lambda: self.pod_api, self.slurm, spec, self.memory)
        self.elastic = elastic.Elastic(
            pod_api=lambda: self.pod_api, slurm=self.slurm, spec=spec, settings=self.settings
        )

    @property
    def pod_api(self) -> PodApi:
        """Every thread has a connection of its own."""
        found = getattr(self.local, "pod_api", None)
        if found is None:
            found = self.local.pod_api = PodApi(Api(self.access))
        return found

    def run(self) -> None:
        for kind in (PODS, NODES):
            watch(self.access, kind, self.news.put)
        while True:
            for change in self._changes():
                if callable(change):
                    change()
                else:
                    if self._concerns_jobs(change):
                        self._expect_changes()
                    self.cache.apply(change)
            if self.cache.has_synced():
                self._ask_slurm()
                self.step(time.monotonic())

    def _changes(self) -> Iterator[Listed | Changed | Callable[[], None]]:
        """What has changed: at least one thing, unless a pass is due before. What comes together has one pass."""
        with contextlib.suppress(queue.Empty):
            yield self.news.get(timeout=max(0.0, self._wake() - time.monotonic()))
            time.sleep(max(0.0, self.stepped + PASS_INTERVAL - time.monotonic()))
            while True:
                yield self.news.get_nowait()

    def _wake(self) -> float:
        due = [*self.memory.due.values(), *self.memory.paced.values(), self.memory.next_accounting]
        return min([self.next_squeue, *(when for when in due if when > time.monotonic())])

    def _concerns_jobs(self, change: Listed | Changed) -> bool:
        """Whether a pod that is a job has begun, ended, moved or gone: its job has, or will."""
        if not isinstance(change, Changed) or change.kind != PODS or not is_ours(change.object):
            return False
        before = self.cache[PODS].get(uid(change.object))
        return change.gone or before is None or progress(before) != progress(change.object)

    def _expect_changes(self) -> None:
        """Slurm's queue will change: look again soon, and often for a while."""
        self.changed = time.monotonic()
        self.next_squeue = min(self.next_squeue, self.changed + SQUEUE_INTERVAL)

    def _ask_slurm(self) -> None:
        """Call squeue, if it is time: once for all jobs."""
        now = time.monotonic()
        if now < self.next_squeue:
            return
        try:
            jobs = self.slurm.squeue(ours=lambda comment: claimed(comment, self.spec.name) is not None)
        except (PinnaceError, ValueError) as error:
            log.warning("squeue: %s", error)
            self.jobs, self.next_squeue = None, now + refusals.UNREACHABLE_PAUSE
            return
        if states(jobs) != states(self.jobs or ()):
            self.changed = now
        self.jobs, self.asked, self.files = jobs, now, self._files()
        matter = any(job.state.is_alive for job in jobs) or any(
            is_ours(pod) and not is_terminal(pod) for pod in self.cache[PODS].values()
        )
        quiet = 0.0 if self.provisioning.elastic[1] else now - self.changed  # elastic nodes go by the latest queue
        self.next_squeue = now + (squeue_interval(quiet) if matter or self.files else IDLE_SQUEUE_INTERVAL)

    def _files(self) -> dict[int, NodeRecord]:
        """The records of the nodes that have joined."""
        joined = [index for index in indices(self.spec.nodes) if index >= self.provisioning.standing]
        found = {}
        for index in joined:
            with contextlib.suppress(ClusterError):
                if record := NodeRecord.read(self.spec.node_file(index)):
                    found[index] = record
        return found

    def world(self) -> World:
        nodes = {
            node["metadata"]["name"]: node
            for node in self.cache[NODES].values()
            if reconciler.JOB_LABEL in node["metadata"].get("labels", {})
        }
        return World(
            cluster=self.spec.name,
            pods=self.cache[PODS],
            nodes=nodes,
            jobs=self.jobs,
            asked=self.asked,
            files=self.files if self.jobs is not None else {},
            reuse=self.settings.reuse_seconds > 0,
        )

    def step(self, now: float) -> None:
        """One pass: plan over everything that is known, and do what was planned."""
        self.stepped = now
        world = self.world()
        actions = plan(world, self.memory, now, room=self._room())
        self._report_duration(now)
        if any(not isinstance(action, Tell) for action in actions):
            self._expect_changes()
        for action in actions:
            if isinstance(action, Submit):
                self._submit(action.pod)
        for action in self.backlog.take([action for action in actions if not isinstance(action, Submit)]):
            self._attempt(lambda action=action: self.actions.run(action))  # type: ignore[misc]
        if self.backlog.waiting:
            self.next_squeue = min(self.next_squeue, now + PASS_INTERVAL)
        self._attempt(lambda: self.elastic.step(world, self.cache[PODS], self.cache[NODES], now))
        self.memory.forget(self.cache[PODS], {job.id for job in self.jobs or ()}, now)

    def _report_duration(self, begun: float) -> None:
        """Log from time to time how long a plan takes."""
        if begun > self.reported + REPORT_INTERVAL:
            self.reported = begun
            pods, jobs = len(self.cache[PODS]), len(self.jobs or ())
            log.info("looked at %d pods and %d jobs in %.3f s", pods, jobs, time.monotonic() - begun)

    @staticmethod
    def _attempt(work: Callable[[], None]) -> None:
        """Do it, or log why not. The next pass finds it not done, and plans it again."""
        try:
            work()
        except (PinnaceError, *API_UNREACHABLE) as error:
            log.warning("%s", error)

    def _room(self) -> int:
        alive = sum(job.state.is_alive for job in self.jobs or ())
        newer = sum(when >= self.asked for when in self.memory.submitted.values())
        most = min(self.settings.max_jobs, self.spec.ranges.last_index - self.provisioning.standing + 1)
        return most - alive - newer - len(self.memory.submitting)

    # --- submitting ---------------------------------------------------------------------------------------------

    def _submit(self, pod: Object) -> None:
        self.memory.submitting.add(uid(pod))
        self.pool.submit(self._submit_one, pod, time.time()).add_done_callback(
            lambda done: self.news.put(lambda: self._submitted(pod, done.result()))
        )

    def _submit_one(self, pod: Object, seen: float) -> int | Exception | None:
        """In a thread: mark the pod, submit its job, note the number. The job, or why there is none.

        A pod that is gone, or has found a place in another's job, needs none.
        """
        timeline = Recorder()
        timeline.mark(StepName.SUBMISSION, MarkEvent.BEGIN, at=seen)
        try:
            owners = self.pod_api.owners(pod)
            made = submission(
                pod,
                owners,
                self.settings,
                cluster=self.spec.name,
                directory=self.spec.directory,
                python=sys.executable,
                given=self.provisioning.options,
            )
            marked = self.pod_api.annotate(pod, {MARK: timestamp()})
            if not marked or marked["spec"].get("nodeName"):
                return None
            with timeline.step(StepName.SBATCH):
                job = self.slurm.sbatch(made.script, made.options)
            timeline.mark(StepName.SUBMISSION, MarkEvent.END)
            self.pod_api.annotate(pod, {NUMBER: str(job)})
            self.pod_api.event(pod, NORMAL, "Submitted", f"submitted job {job} to Slurm")
            timeline.save(submission_marks(self.spec.directory, f"job-{job}"))
        except Exception as error:  # noqa: BLE001 - it is handed to the main thread, which knows what to do
            return error
        return job

    def _submitted(self, pod: Object, result: int | Exception | None) -> None:
        key, now = uid(pod), time.monotonic()
        self.memory.submitting.discard(key)
        self._expect_changes()
        if not isinstance(result, UsageError):
            self.memory.marked[key] = now
        if isinstance(result, int):
            self.memory.submitted[result] = now
        if result is None or isinstance(result, int):
            return
        log.warning("%s/%s: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], result)
        refusal = refusals.refusal_of(result)
        if refusal is refusals.Refusal.TRANSIENT:
            self.memory.hold = now + refusals.UNREACHABLE_PAUSE
        if refusal is refusals.Refusal.SUBMIT_LIMIT:
            self.memory.hold = now + refusals.SUBMIT_LIMIT_PAUSE
        if refusal is refusals.Refusal.PERMANENT:
            self.memory.refuse(key, now)
        self.memory.due[key] = max(self.memory.due.get(key, 0.0), self.memory.hold, now + SQUEUE_INTERVAL)
        if isinstance(result, PinnaceError) and not isinstance(result, ApiError):  # that may be no matter of the pod
            text = f"{result.message} {result.hint}".strip()
            if self.memory.told.get(key) != text:
                self.memory.told[key] = text
                self._attempt(lambda: self.actions.refused(pod, text))


def wait_for_api(spec: ClusterSpec) -> Access:
    """The API, once it answers."""
    deadline = time.monotonic() + API_LIMIT
    while time.monotonic() < deadline:
        if access := head_access.access(spec):
            with contextlib.suppress(*API_FAILURES):
                Api(access, timeout=2.0).get("/api/v1/nodes?limit=1")
                return access
        time.sleep(API_INTERVAL)
    raise ClusterError("the API does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(prog="pinnace-provisioner")
    parser.add_argument("--cluster", type=Path, required=True)
    args = parser.parse_args()
    threading.excepthook = end_with_thread
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    for name in set(os.environ) - set(submission_environment(os.environ)):
        del os.environ[name]  # squeue, too, takes the enclosing job's variables for options
    spec = ClusterSpec.load(args.cluster)
    PodJobController(spec, wait_for_api(spec)).run()


if __name__ == "__main__":
    main()
