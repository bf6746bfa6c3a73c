"""What is to be done next: a pure function of what Kubernetes and Slurm say, and of the little that we remember.

The pod is the claim. Before its job is submitted the pod is marked; afterwards it gets the job's number. The job's
comment has the pod's uid. So each side can be found from the other, whoever died in between:

    no mark                          nothing was ever submitted: submit
    a mark, no job in the queue      we died in between: submit, once the other submission would be visible
    a mark, several jobs             both came through: the first stays, those that wait are cancelled
    a job, no pod                    the pod was deleted: cancel
    a pod on the node of a job that has ended    the node died: the pod has failed, for Slurm's reason

Nothing here is done twice if it is asked twice, and what is lost is found again by looking.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.placement import SCHEDULER
from pinnace.kube.conditions import condition
from pinnace.kube.nodes import INTERNAL_IP, READY, is_ready
from pinnace.kube.pods import controller_uid, is_terminal
from pinnace.kube.workqueue import Backoff
from pinnace.podjobs import pod_status
from pinnace.podjobs.actions import (
    AskAccounting,
    Cancel,
    Explain,
    Fail,
    Forget,
    FreeIndex,
    Number,
    Remove,
    Retire,
    Submit,
    Tell,
)
from pinnace.podjobs.submission import claimed
from pinnace.slurm.states import JobState, Phase
from pinnace.slurm.times import format_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pinnace.podjobs.actions import Action
    from pinnace.slurm.jobs import QueuedJob
    from pinnace.spec import NodeRecord

Object = dict[str, Any]

MARK, NUMBER = "pinnace.dev/submitted-at", "pinnace.dev/job"  # annotations of a pod
JOB_LABEL = "pinnace.dev/job"  # of a node
MAX_JOB_ID = 0xFFFFFFF0  # those behind it mean other things to Slurm
MAX_JOB_DIGITS = 10  # of that number
MAX_ACCOUNTING_JOBS = 100  # that accounting is asked for at once
NO_NODE: Object = {"status": {}}
NO_POD: Object = {"spec": {}}
ELASTIC = "elastic-"  # begins the claim of a job that is a node for anybody
ARCHIVE_PORT = 10242  # where ended nodes' logs are read, see podjobs.log_archive
SQUEUE_LAG = 2.0  # seconds after which squeue shows a job that we know of
SUBMISSION_LIMIT = 10.0  # seconds after which a submission of one of us that died is in the queue, or never will be
JOIN_LIMIT = 300.0  # seconds that a job may run before its node takes the pod
LEAVE_LIMIT = 30.0  # seconds that a job may run after its pod has ended
MEMORY_LIMIT = 3600.0  # seconds for which ``Memory`` keeps when something was first seen
LINK_LIMIT = 60.0  # seconds after which no other node has a link to a node that was killed
CONDITION_INTERVAL = 60.0  # seconds between conditions of a pod that differ only in when Slurm expects its job to start
MAX_UNSEEN = 16  # jobs for one controller's pods that are submitted between two looks at the queue
MANY_WAITING = 8  # jobs for one controller's pods that Slurm has no room for; another is submitted every PACE_INTERVAL
PACE_INTERVAL = 1.0  # seconds
RESUBMIT_DELAYS = (10.0, 30.0, 60.0, 120.0, 300.0)  # seconds before the next try of what Slurm, or we, refused


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended, and the pods or elastic nodes of this cluster that it is proven to have been for."""

    state: JobState | None
    claims: frozenset[str]


NOT_KNOWN = Ended(state=None, claims=frozenset())


@dataclass(kw_only=True)
class Memory:
    """What need not survive us. Times are of the monotonic clock."""

    submitting: set[str] = field(default_factory=set)
    marked: dict[str, float] = field(
        default_factory=dict
    )  # pod: when its last submission was over, whatever came of it
    submitted: dict[int, float] = field(default_factory=dict)  # job: when sbatch returned
    cancelled: dict[int, float] = field(default_factory=dict)  # job: when Slurm was told to end it
    due: dict[str, float] = field(default_factory=dict)  # pod: not before
    resubmissions: Backoff[str] = field(default_factory=lambda: Backoff(RESUBMIT_DELAYS))  # by pod
    ended: dict[int, Ended] = field(default_factory=dict)  # what accounting said
    next_accounting: float = 0.0  # it is not asked before
    since: dict[str, float] = field(default_factory=dict)  # when something odd was first seen
    told: dict[str, str] = field(default_factory=dict)
    hold: float = 0.0  # no submission before
    paced: dict[str, float] = field(default_factory=dict)  # controller: no submission for its pods before

    def refuse(self, uid: str, now: float) -> None:
        """Submit the job of a pod again, later each time."""
        self.due[uid] = now + self.resubmissions.next_delay(uid)

    def odd_for(self, what: str, now: float) -> float:
        """For how long something has been odd; the first call begins to count."""
        return now - self.since.setdefault(what, now)

    def saw(self, jobs: Iterable[int], claims: Iterable[str]) -> None:
        """What the queue shows was not missing: an answer without it was wrong, or older."""
        for what in (*(f"missing {job}" for job in jobs), *(f"unseen {uid}" for uid in claims)):
            self.since.pop(what, None)

    def forget(self, pods: Mapping[str, Object], jobs: set[int], now: float) -> None:
        """Keep nothing about what is not there any more."""
        named = {job for pod in pods.values() for job in named_jobs(pod)}
        self.ended = {job: ended for job, ended in self.ended.items() if job in named}
        for mapping in (self.due, self.told, self.marked):
            for uid in [uid for uid in mapping if uid not in pods]:
                del mapping[uid]
        self.resubmissions.forget_others(pods)
        self.paced = {controller: when for controller, when in self.paced.items() if when > now}
        self.since = {what: when for what, when in self.since.items() if now - when < MEMORY_LIMIT}
        self.submitted = {job: when for job, when in self.submitted.items() if job in jobs or now - when < MEMORY_LIMIT}
        self.cancelled = {job: when for job, when in self.cancelled.items() if job in jobs}


@dataclass(frozen=True, kw_only=True)
class World:
    """What is. ``jobs`` is None if Slurm was not asked, or did not answer; ``asked`` is when it was."""

    cluster: str
    pods: Mapping[str, Object]  # by uid
    nodes: Mapping[str, Object]  # those that have joined, by name
    jobs: Sequence[QueuedJob] | None
    asked: float
    files: Mapping[int, NodeRecord]  # of those that have joined, by index
    reuse: bool = True  # whether pods may follow one another in a job


def is_ours(pod: Object) -> bool:
    return bool(pod["spec"].get("schedulerName") == SCHEDULER)


def job_of_node(name: str) -> int | None:
    """Nodes that have joined are named after their jobs."""
    return job_number(name.removeprefix("job-")) if name.startswith("job-") else None


def job_number(text: str) -> int | None:
    """The number of a job in what others may have written: an annotation of a pod can be anything."""
    number = int(text) if len(text) <= MAX_JOB_DIGITS and text.isascii() and text.isdigit() else 0
    return number if 0 < number <= MAX_JOB_ID else None


def named_jobs(pod: Object) -> set[int]:
    """The jobs whose end can matter to a pod, as it says itself."""
    noted = job_number(pod["metadata"].get("annotations", {}).get(NUMBER, ""))
    return {job for job in (noted, job_of_node(pod["spec"].get("nodeName", ""))) if job is not None}


def plan(world: World, memory: Memory, now: float, *, room: int) -> list[Action]:
    """Everything that can be done now. ``room`` is how many more jobs there may be."""
    return list(_Pass(world, memory, now, room).actions())


class _Pass:
    def __init__(self, world: World, memory: Memory, now: float, room: int) -> None:
        self.world, self.memory, self.now, self.room = world, memory, now, room
        self.jobs = {job.id: job for job in world.jobs or ()}
        self.claims: dict[str, list[QueuedJob]] = {}
        for job in world.jobs or ():
            claim = claimed(job.comment, world.cluster)
            if claim and job.state.is_alive:
                self.claims.setdefault(claim, []).append(job)
        memory.saw(self.jobs, self.claims)
        self.unknown: set[int] = set()  # jobs that have ended, nobody here knows how
        self.waiting = Counter(
            controller_uid(world.pods[uid])
            for uid, jobs in self.claims.items()
            if uid in world.pods and all(is_known_to_wait(job) for job in jobs)
        )  # jobs, by the controllers of their pods
        self.unseen = Counter(
            controller_uid(world.pods[uid])
            for uid in memory.submitting | {uid for uid, when in memory.marked.items() if when >= world.asked}
            if uid in world.pods
        )  # jobs that are younger than the queue as we know it
        self.busy = {
            pod["spec"].get("nodeName") for pod in world.pods.values() if not is_terminal(pod)
        }  # nodes with pods that have not ended

    def actions(self) -> Iterator[Action]:
        for uid, pod in self.world.pods.items():
            if is_ours(pod) or job_of_node(pod["spec"].get("nodeName", "")):
                yield from self._pod(uid, pod)
        if self.world.jobs is None:
            return
        yield from self._accounting()
        yield from self._orphans()
        yield from self._superfluous()
        yield from self._nodes()
        yield from self._indices()

    def _ended(self, job: int) -> bool:
        """Whether a job has surely ended. One that the queue does not have may be younger than our look at it."""
        if self.world.jobs is None:
            return False
        known = self.jobs.get(job)
        if known is None:
            return self.world.asked > self.memory.since.setdefault(f"missing {job}", self.now) + SQUEUE_LAG
        return known.state.has_ended

    def _state(self, job: int, uid: str = "") -> JobState | None:
        """How a job ended, if it is proven to have been for this pod; without one, for anything of this cluster.

        A pod can name any job, and is to learn nothing of others'. Without proof a job is one that Slurm has forgotten:
        a pod that waits is tried again, later and later, and is not ended for what became of somebody else's job.
        """
        known = self.jobs.get(job)
        ended = self._of_queue(known) if known else self.memory.ended.get(job, NOT_KNOWN)
        proven = uid in ended.claims if uid else bool(ended.claims)
        return ended.state if proven else None

    def _of_queue(self, job: QueuedJob) -> Ended:
        claim = claimed(job.comment, self.world.cluster)
        return Ended(state=job.state, claims=frozenset([claim] if claim else []))

    def _knows_end(self, job: int) -> bool:
        """Whether it is known how a job ended, or that nobody knows. If not, accounting is asked."""
        known = job in self.jobs or job in self.memory.ended
        if not known:
            self.unknown.add(job)
        return known

    def _accounting(self) -> Iterator[Action]:
        """One question for all jobs. Those that have been missing for longest come first: pods can name new ones."""
        if self.unknown and self.now >= self.memory.next_accounting:
            oldest = sorted(self.unknown, key=lambda job: (self.memory.since.get(f"missing {job}", 0.0), job))
            yield AskAccounting(jobs=tuple(oldest[:MAX_ACCOUNTING_JOBS]))

    def _pod(self, uid: str, pod: Object) -> Iterator[Action]:
        name = pod["spec"].get("nodeName")
        if is_terminal(pod):
            yield from self._terminal(pod)
        elif name:
            job = job_of_node(name)
            if job is not None and self._ended(job):
                yield from self._failed(pod, job)
            elif job in self.jobs and is_ours(pod) and not is_ready(self.world.nodes.get(name, NO_NODE)):
                silent = pod["status"].get("phase") == "Pending" and self.memory.odd_for(f"joining {uid}", self.now)
                if silent and silent > JOIN_LIMIT:
                    yield from self._cancel(job or 0, why="its node did not come up", kill=True)
        elif not pod["metadata"].get("deletionTimestamp"):
            yield from self._waiting(uid, pod)

    def _terminal(self, pod: Object) -> Iterator[Action]:
        job = job_of_node(pod["spec"].get("nodeName", ""))
        if job is None or self.world.jobs is None:
            return
        if self._ended(job):
            if pod_status.needs_explanation(pod) and self._knows_end(job):
                yield Explain(pod=pod, job=job, state=self._state(job))
            if is_to_be_removed(pod):
                yield Remove(pod=pod)
        elif is_ours(pod) and job in self.jobs and self._idle_for(job) > LEAVE_LIMIT:
            yield from self._cancel(job, why="its pod has ended")

    def _idle_for(self, job: int) -> float:
        """For how long a job's node has been without pods that have not ended."""
        if f"job-{job}" in self.busy:
            self.memory.since.pop(f"idle {job}", None)
            return 0.0
        return self.memory.odd_for(f"idle {job}", self.now)

    def _failed(self, pod: Object, job: int) -> Iterator[Action]:
        if self._knows_end(job):
            yield Fail(pod=pod, job=job, state=self._state(job))
            if is_to_be_removed(pod):
                yield Remove(pod=pod)

    def _waiting(self, uid: str, pod: Object) -> Iterator[Action]:
        notes = pod["metadata"].get("annotations", {})
        if uid in self.memory.submitting:
            return
        if MARK not in notes and uid not in self.memory.marked:  # what we did may not have come back to us yet
            yield from self._submit(uid, pod)
        elif self.world.jobs is not None and self.world.asked > self.memory.marked.get(uid, 0.0) + SQUEUE_LAG:
            jobs = sorted(self.claims.get(uid, ()), key=lambda job: (job.state.phase is Phase.WAITING, job.id))
            if jobs:
                yield from self._queued(uid, pod, jobs)
            elif (number := job_number(notes.get(NUMBER, ""))) is not None:
                yield from self._lost(uid, pod, number)
            elif self.memory.odd_for(f"unseen {uid}", self.now) > SUBMISSION_LIMIT:
                yield from self._submit(uid, pod)

    def _submit(self, uid: str, pod: Object) -> Iterator[Action]:
        if self.room > 0 and self.now >= max(self.memory.due.get(uid, 0.0), self.memory.hold) and self._in_pace(pod):
            self.room -= 1
            yield Submit(pod=pod)

    def _in_pace(self, pod: Object) -> bool:
        """Where Slurm has many jobs for a controller's pods waiting, more are submitted one by one.

        They would wait, too, and may never be needed: pods follow one another in the jobs that run (``podjobs.reuse``).
        """
        controller = controller_uid(pod)
        if not controller or not self.world.reuse:
            return True
        if self.unseen[controller] >= MAX_UNSEEN or self.now < self.memory.paced.get(controller, 0.0):
            return False
        self.unseen[controller] += 1
        if self.waiting[controller] >= MANY_WAITING:
            self.memory.paced[controller] = self.now + PACE_INTERVAL
        return True

    def _queued(self, uid: str, pod: Object, jobs: list[QueuedJob]) -> Iterator[Action]:
        first, *doubles = jobs
        # One that runs may have another pod by now: squeue is older than that, or our list of pods is. It ends itself.
        for double in doubles:
            if double.state.phase is Phase.WAITING:
                yield from self._cancel(double.id, why=f"job {first.id} is for the same pod", only_pending=True)
        if pod["metadata"].get("annotations", {}).get(NUMBER) != str(first.id):
            yield Number(pod=pod, job=first.id)
        if first.state.phase is Phase.WAITING:
            self.memory.since.pop(f"joining {uid}", None)
            why = f"job {first.id} is {first.state.lower()} in {first.partition} ({first.reason})"
            text = f"{why}, expected to start {format_local(first.start)}" if first.start else why
            told = self.memory.told.get(uid, "")
            recently = self.now - self.memory.since.get(f"told {uid}", 0.0) < CONDITION_INTERVAL
            if told != text and not (recently and told.startswith(why)):
                self.memory.since[f"told {uid}"] = self.now
                yield Tell(pod=pod, text=text)
        elif self.memory.odd_for(f"joining {uid}", self.now) > JOIN_LIMIT:
            yield from self._cancel(first.id, why="its node did not come up", kill=True)

    def _lost(self, uid: str, pod: Object, job: int) -> Iterator[Action]:
        """A job that ended before it took its pod. Who cancels a job does not want the pod; the rest is tried again."""
        if not self._ended(job) or not self._knows_end(job):
            return
        state = self._state(job, uid)
        if state in {JobState.CANCELLED, JobState.DEADLINE, JobState.TIMEOUT}:
            yield Fail(pod=pod, job=job, state=state)
        elif f"retry {job}" not in self.memory.since:
            self.memory.since[f"retry {job}"] = self.now
            self.memory.refuse(uid, self.now)
            yield Tell(
                pod=pod, text=pod_status.reason(job, state)[1] + " before the pod could start; it is tried again"
            )
        else:
            yield from self._submit(uid, pod)

    def _orphans(self) -> Iterator[Action]:
        """Jobs whose pods were deleted. Those that run have a moment to end by themselves."""
        waiting, left = [], []
        for uid, jobs in self.claims.items():
            if uid in self.world.pods or uid in self.memory.submitting or uid.startswith(ELASTIC):
                continue
            for job in jobs:
                if job.state.phase is Phase.WAITING:
                    waiting.append(job.id)
                elif self._idle_for(job.id) > LEAVE_LIMIT:
                    left.append(job.id)
        yield from self._cancel_together(waiting, why="its pod was deleted", only_pending=True)
        yield from self._cancel_together(left, why="its pod was deleted")

    def _superfluous(self) -> Iterator[Action]:
        """Jobs that wait for nothing: their pods have found a place in other jobs."""
        taken = [
            job.id
            for uid, jobs in self.claims.items()
            for job in jobs
            if job.state.phase is Phase.WAITING
            and self.world.pods.get(uid, NO_POD)["spec"].get("nodeName", f"job-{job.id}") != f"job-{job.id}"
        ]
        yield from self._cancel_together(taken, why="another job had room for its pod", only_pending=True)

    def _cancel(self, job: int, *, why: str, kill: bool = False, only_pending: bool = False) -> Iterator[Action]:
        """End a job, unless that was done since Slurm was asked for its queue."""
        if self.memory.cancelled.get(job, -math.inf) < self.world.asked:
            yield Cancel(jobs=(job,), why=why, kill=kill, only_pending=only_pending)

    def _cancel_together(self, jobs: list[int], *, why: str, only_pending: bool = False) -> Iterator[Action]:
        """End jobs in one call, and no more often than Slurm is asked for its queue: there may be thousands."""
        if jobs and not any(when >= self.world.asked for when in self.memory.cancelled.values()):
            yield Cancel(jobs=tuple(sorted(jobs)), why=why, only_pending=only_pending)

    def _nodes(self) -> Iterator[Action]:
        held = {pod["spec"].get("nodeName") for pod in self.world.pods.values()}
        for name, node in self.world.nodes.items():
            job = job_of_node(name)
            if job is None or not self._ended(job):
                continue
            if name not in held:
                yield Forget(node=name)
            elif name not in self.busy and not is_retired(node):
                yield Retire(node=name)

    def _indices(self) -> Iterator[Action]:
        for index, about in self.world.files.items():
            name, job = about.name, about.job or job_of_node(about.name)
            if job is None or not self._ended(job):
                continue
            node = self.world.nodes.get(name)
            if (node is None or is_retired(node)) and (
                about.is_over or self.memory.odd_for(f"index {name}", self.now) > LINK_LIMIT
            ):
                yield FreeIndex(index=index, node=name)


def is_known_to_wait(job: QueuedJob) -> bool:
    """Whether Slurm has looked at a job and found no room for it."""
    return job.state.phase is Phase.WAITING and job.reason not in {"", "None"}


def is_to_be_removed(pod: Object) -> bool:
    """Whether a deleted pod waits for us. Once it is removed without grace, only somebody else's finalizer keeps it."""
    metadata = pod["metadata"]
    done = metadata.get("finalizers") and metadata.get("deletionGracePeriodSeconds") == 0
    return bool(metadata.get("deletionTimestamp") and not done)


def is_retired(node: Object) -> bool:
    port = node["status"].get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
    return bool(port == ARCHIVE_PORT)


def retirement(address: str, now: str) -> Object:
    """The status of a node that has ended: it takes no pods, and its logs are read elsewhere."""
    why = "its Slurm job has ended; the logs of its pods are kept until these are deleted"
    return {
        "addresses": [{"type": INTERNAL_IP, "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": ARCHIVE_PORT}},
        "conditions": [condition(READY, "False", "JobEnded", why, now=now) | {"lastHeartbeatTime": now}],
    }
