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

from pinnace.errors import ApiError, PinnaceError, SlurmError, UsageError
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE, Api, timestamp
from pinnace.kube.watch import Changed, Listed, end_with_thread, watch
from pinnace.podjobs import elastic, head_access, reconciler, refusals
from pinnace.podjobs.actions import Hands, Kubernetes
from pinnace.podjobs.backlog import Backlog
from pinnace.podjobs.pod_status import is_terminal
from pinnace.podjobs.reconciler import MARK, NUMBER, Memory, Submit, World, is_ours, plan
from pinnace.podjobs.settings import Settings
from pinnace.podjobs.submission import claimed, submission
from pinnace.slurm.commands import Slurm, submission_environment
from pinnace.slurm.states import Phase
from pinnace.spec import ClusterSpec, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinnace.kube.access import Access
    from pinnace.slurm.commands import Job

    Object = dict[str, Any]

SUBMITTERS = 8  # sbatch calls at a time
SOON = 0.1  # seconds between looks while much happens; what comes alone is looked at at once
BUSY, IDLE = 1.0, 15.0  # seconds between looks at the queue, with and without jobs that matter
REPORT = 10.0  # seconds
PODS, NODES = "pods", "nodes"
HEAD_PAUSE = 0.05
HEAD_LIMIT = 120.0

log = logging.getLogger("pinnace.podjobs")


class Service:
    """One cluster's provisioner."""

    def __init__(self, spec: ClusterSpec, access: Access) -> None:
        if spec.provisioning is None:
            raise UsageError("this cluster has no provisioner")
        self.spec, self.provisioning = spec, spec.provisioning
        self.settings = Settings.from_json(spec.provisioning.settings)
        self.access = access
        self.slurm = Slurm()
        self.memory = Memory()
        self.backlog = Backlog()
        self.known: dict[str, dict[str, Object]] = {}
        self.jobs: list[Job] | None = None
        self.files: dict[int, Object] = {}  # as they were when Slurm was asked
        self.asked = 0.0
        self.next_look = 0.0
        self.said = 0.0
        self.stepped = 0.0
        self.news: queue.Queue[Listed | Changed | Callable[[], None]] = queue.Queue()
        self.pool = ThreadPoolExecutor(SUBMITTERS, thread_name_prefix="submit")
        self.local = threading.local()
        self.hands = Hands(lambda: self.kubernetes, self.slurm, spec, self.memory)
        self.elastic = elastic.Elastic(
            kubernetes=lambda: self.kubernetes, slurm=self.slurm, spec=spec, settings=self.settings
        )

    @property
    def kubernetes(self) -> Kubernetes:
        """Every thread has a connection of its own."""
        found = getattr(self.local, "kubernetes", None)
        if found is None:
            found = self.local.kubernetes = Kubernetes(Api(self.access))
        return found

    def run(self) -> None:
        for kind in (PODS, NODES):
            watch(self.access, kind, self.news.put)
        while True:
            for change in self._hear():
                if callable(change):
                    change()
                else:
                    self._note(change)
            if self.known.keys() == {PODS, NODES}:
                self._look()
                self.step(time.monotonic())

    def _hear(self) -> Iterator[Listed | Changed | Callable[[], None]]:
        """What is new: at least one thing, unless it is time for something before."""
        with contextlib.suppress(queue.Empty):
            yield self.news.get(timeout=max(0.0, self._wake() - time.monotonic()))
            time.sleep(max(0.0, self.stepped + SOON - time.monotonic()))  # one look at all that comes together
            while True:
                yield self.news.get_nowait()

    def _wake(self) -> float:
        due = [*self.memory.due.values(), self.memory.next_accounting]
        return min([self.next_look, *(when for when in due if when > time.monotonic())])

    def _note(self, change: Listed | Changed) -> None:
        if isinstance(change, Listed):
            self.known[change.kind] = {thing["metadata"]["uid"]: slim(thing) for thing in change.objects}
        elif change.gone:
            self.known[change.kind].pop(change.object["metadata"]["uid"], None)
        else:
            self.known[change.kind][change.object["metadata"]["uid"]] = slim(change.object)

    def _look(self) -> None:
        """Ask Slurm, if it is time: once for all jobs."""
        now = time.monotonic()
        if now < self.next_look:
            return
        try:
            jobs = [job for job in self.slurm.squeue() if claimed(job.comment, self.spec.name)]
        except (PinnaceError, ValueError) as error:
            log.warning("squeue: %s", error)
            self.jobs, self.next_look = None, now + refusals.PAUSE
            return
        self.jobs, self.asked, self.files = jobs, now, self._files()
        matter = any(job.state.phase is not Phase.ENDED for job in jobs) or any(
            is_ours(pod) and not is_terminal(pod) for pod in self.known[PODS].values()
        )
        self.next_look = now + (BUSY if matter or self.files else IDLE)

    def _files(self) -> dict[int, Object]:
        """What the nodes that have joined say of themselves: a file each, on a disk that hosts share."""
        directory = self.spec.directory / "nodes"
        found = {}
        for name in os.listdir(directory):  # noqa: PTH208 - a real opendir, now
            stem, _, suffix = name.partition(".")
            if suffix == "json" and stem.isdigit() and int(stem) >= self.provisioning.standing:
                with contextlib.suppress(ValueError):
                    about = read_json(directory / name)
                    if about:
                        found[int(stem)] = about
        return found

    def world(self) -> World:
        nodes = {
            node["metadata"]["name"]: node
            for node in self.known[NODES].values()
            if reconciler.JOB_LABEL in node["metadata"].get("labels", {})
        }
        return World(
            cluster=self.spec.name,
            pods=self.known[PODS],
            nodes=nodes,
            jobs=self.jobs,
            asked=self.asked,
            files=self.files if self.jobs is not None else {},
        )

    def step(self, now: float) -> None:
        """One look at everything, and what follows from it."""
        self.stepped = now
        world = self.world()
        actions = plan(world, self.memory, now, room=self._room())
        self._say_how_long(now)
        for action in actions:
            if isinstance(action, Submit):
                self._submit(action.pod)
        for action in self.backlog.take([action for action in actions if not isinstance(action, Submit)]):
            self._attempt(lambda action=action: self.hands.do(action))  # type: ignore[misc]
        if self.backlog.waiting:
            self.next_look = min(self.next_look, now + SOON)
        self._attempt(lambda: self.elastic.step(world, self.known[PODS], self.known[NODES], now))
        self.memory.forget(self.known[PODS], {job.id for job in self.jobs or ()}, now)

    def _say_how_long(self, begun: float) -> None:
        """From time to time, for whoever wants to know."""
        if begun > self.said + REPORT:
            self.said = begun
            pods, jobs = len(self.known[PODS]), len(self.jobs or ())
            log.info("looked at %d pods and %d jobs in %.3f s", pods, jobs, time.monotonic() - begun)

    @staticmethod
    def _attempt(work: Callable[[], None]) -> None:
        """What does not succeed is found to be undone at the next look."""
        try:
            work()
        except (PinnaceError, *API_UNREACHABLE) as error:
            log.warning("%s", error)

    def _room(self) -> int:
        alive = sum(job.state.phase is not Phase.ENDED for job in self.jobs or ())
        newer = sum(when >= self.asked for when in self.memory.submitted.values())
        most = min(self.settings.max_jobs, self.spec.ranges.last_index - self.provisioning.standing + 1)
        return most - alive - newer - len(self.memory.submitting)

    # --- submitting ---------------------------------------------------------------------------------------------

    def _submit(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self.memory.submitting.add(uid)
        self.pool.submit(self._submit_one, pod).add_done_callback(
            lambda done: self.news.put(lambda: self._submitted(pod, done.result()))
        )

    def _submit_one(self, pod: Object) -> int | Exception | None:
        """In a thread: mark the pod, submit its job, note the number. The job, or why there is none.

        A pod that is gone, or has found a place in another's job, needs none.
        """
        try:
            owners = self.kubernetes.owners(pod)
            made = submission(
                pod,
                owners,
                self.settings,
                cluster=self.spec.name,
                directory=self.spec.directory,
                python=sys.executable,
                given=self.provisioning.options,
            )
            marked = self.kubernetes.annotate(pod, {MARK: timestamp()})
            if not marked or marked["spec"].get("nodeName"):
                return None
            job = self.slurm.sbatch(made.script, made.options)
            self.kubernetes.annotate(pod, {NUMBER: str(job)})
            self.kubernetes.event(pod, "Normal", "Submitted", f"submitted job {job} to Slurm")
        except Exception as error:  # noqa: BLE001 - it is handed to the main thread, which knows what to do
            return error
        return job

    def _submitted(self, pod: Object, result: int | Exception | None) -> None:
        uid, now = pod["metadata"]["uid"], time.monotonic()
        self.memory.submitting.discard(uid)
        self.next_look = min(self.next_look, now + BUSY)
        if not isinstance(result, UsageError):
            self.memory.marked[uid] = now
        if isinstance(result, int):
            self.memory.submitted[result] = now
        if result is None or isinstance(result, int):
            return
        log.warning("%s/%s: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], result)
        kind = refusals.kind(result)
        if kind is refusals.Kind.NOT_NOW:
            self.memory.hold = now + refusals.PAUSE
        if kind is refusals.Kind.FULL:
            self.memory.hold = now + refusals.FULL_PAUSE
        if kind is refusals.Kind.NEVER:
            self.memory.refuse(uid, now)
        self.memory.due[uid] = max(self.memory.due.get(uid, 0.0), self.memory.hold, now + BUSY)
        if isinstance(result, PinnaceError) and not isinstance(result, ApiError):  # that may be no matter of the pod
            text = f"{result.message} {result.hint}".strip()
            if self.memory.told.get(uid) != text:
                self.memory.told[uid] = text
                self._attempt(lambda: self.hands.refused(pod, text))


def slim(thing: Object) -> Object:
    """An object without what we never look at: a thousand pods shall be small."""
    metadata = {name: value for name, value in thing["metadata"].items() if name != "managedFields"}
    return thing | {"metadata": metadata}


def wait_for_api(spec: ClusterSpec) -> Access:
    """The API, once it answers."""
    deadline = time.monotonic() + HEAD_LIMIT
    while time.monotonic() < deadline:
        if access := head_access.access(spec):
            with contextlib.suppress(*API_FAILURES):
                Api(access, timeout=2.0).get("/api/v1/nodes?limit=1")
                return access
        time.sleep(HEAD_PAUSE)
    raise SlurmError("the API does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(prog="pinnace-provisioner")
    parser.add_argument("--cluster", type=Path, required=True)
    words = parser.parse_args()
    threading.excepthook = end_with_thread
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    for name in set(os.environ) - set(submission_environment(os.environ)):
        del os.environ[name]  # squeue, too, would take the enclosing job's for wishes
    spec = ClusterSpec.load(words.cluster)
    Service(spec, wait_for_api(spec)).run()


if __name__ == "__main__":
    main()
