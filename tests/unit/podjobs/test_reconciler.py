"""What the provisioner does next, whatever it finds."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

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
from pinnace.podjobs.reconciler import (
    ARCHIVE_PORT,
    CONDITION_INTERVAL,
    JOIN_LIMIT,
    LEAVE_LIMIT,
    MANY_WAITING,
    MAX_ACCOUNTING_JOBS,
    MAX_UNSEEN,
    NUMBER,
    PACE_INTERVAL,
    SUBMISSION_LIMIT,
    Ended,
    Memory,
    World,
    plan,
)
from pinnace.slurm.states import JobState
from pinnace.spec import NodeRecord, NodeState
from unit.podjobs.samples import CLUSTER, job, pod

if TYPE_CHECKING:
    from pinnace.slurm.jobs import QueuedJob

NOW = 1000.0


def world(
    *pods: dict[str, Any],
    jobs: list[QueuedJob] | None = None,
    nodes: list[dict[str, Any]] | None = None,
    files: dict[int, NodeRecord] | None = None,
    asked: float = NOW - 0.5,
    reuse: bool = True,
) -> World:
    return World(
        cluster=CLUSTER,
        pods={body["metadata"]["uid"]: body for body in pods},
        nodes={node["metadata"]["name"]: node for node in nodes or ()},
        jobs=jobs,
        asked=asked,
        files=files or {},
        reuse=reuse,
    )


def node(name: str, port: int = 10250) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}}


def missing(*numbers: int) -> Memory:
    """That these jobs are not in the queue has been known for a while."""
    return Memory(since={f"missing {number}": NOW - 60 for number in numbers})


def ended(*claims: str) -> Ended:
    """What accounting says of a job that was cancelled."""
    return Ended(state=JobState.CANCELLED, claims=frozenset(claims))


def test_a_new_pod_is_submitted_at_once_even_while_slurm_is_silent() -> None:
    assert plan(world(pod()), Memory(), NOW, room=5) == [Submit(pod=pod())]


def test_pods_of_other_schedulers_are_none_of_ours() -> None:
    assert plan(world(pod(schedulerName="default-scheduler"), jobs=[]), Memory(), NOW, room=5) == []


def test_no_more_jobs_than_there_is_room_for() -> None:
    pods = [pod(str(number)) for number in range(5)]
    assert len(plan(world(*pods, jobs=[]), Memory(), NOW, room=2)) == 2
    assert plan(world(*pods, jobs=[]), Memory(hold=NOW + 1), NOW, room=2) == []
    assert plan(world(pod(), jobs=[]), Memory(due={"uid-one": NOW + 1}), NOW, room=2) == []
    assert plan(world(pod(), jobs=[]), Memory(submitting={"uid-one"}), NOW, room=2) == []


def of_a_job(name: str, number: int | None = None) -> dict[str, Any]:
    body = pod(name, job=number)
    body["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "many", "uid": "many", "controller": True}]
    return body


def submitted(found: list[Any]) -> list[str]:
    return [action.pod["metadata"]["name"] for action in found if isinstance(action, Submit)]


def test_while_slurm_has_no_room_more_jobs_of_a_controller_are_submitted_one_by_one() -> None:
    waiting = [of_a_job(f"waiting-{number}", number) for number in range(1, MANY_WAITING + 1)]
    new = [of_a_job("new-1"), of_a_job("new-2"), pod("alone-1"), pod("alone-2")]
    alone = ["alone-1", "alone-2"]

    def queue(reason: str) -> list[QueuedJob]:
        names = [(number, f"uid-waiting-{number}") for number in range(1, MANY_WAITING + 1)]
        return [job(number, JobState.PENDING, uid=uid, reason=reason) for number, uid in names]

    memory = Memory()
    full = world(*waiting, *new, jobs=queue("Resources"))
    assert submitted(plan(full, memory, NOW, room=50)) == ["new-1", *alone]
    assert submitted(plan(full, memory, NOW + PACE_INTERVAL / 2, room=50)) == alone
    assert submitted(plan(full, memory, NOW + PACE_INTERVAL, room=50)) == ["new-1", *alone]
    not_looked_at = world(*waiting, *new, jobs=queue("None"))
    assert submitted(plan(not_looked_at, Memory(), NOW, room=50)) == ["new-1", "new-2", *alone]
    fewer = world(*waiting, *new, jobs=queue("Resources")[1:])
    assert submitted(plan(fewer, Memory(), NOW, room=50)) == ["new-1", "new-2", *alone]


def test_no_controller_floods_slurm_before_the_queue_shows_whether_there_is_room() -> None:
    many = world(*(of_a_job(str(number)) for number in range(2 * MAX_UNSEEN)), jobs=[])
    memory = Memory()
    begun = submitted(plan(many, memory, NOW, room=1000))
    assert len(begun) == MAX_UNSEEN
    memory.submitting |= {f"uid-{name}" for name in begun[:2]}
    memory.marked |= {f"uid-{name}": NOW for name in begun[2:]}
    assert submitted(plan(many, memory, NOW + 0.1, room=1000)) == []
    looked_again = world(*many.pods.values(), jobs=[], asked=NOW + 1)
    assert len(submitted(plan(looked_again, memory, NOW + 1.1, room=1000))) == MAX_UNSEEN - 2


def test_where_every_pod_has_a_job_of_its_own_all_are_submitted_at_once() -> None:
    many = world(*(of_a_job(str(number)) for number in range(2 * MAX_UNSEEN)), jobs=[], reuse=False)
    assert len(submitted(plan(many, Memory(), NOW, room=1000))) == 2 * MAX_UNSEEN


def test_what_was_submitted_is_not_submitted_again_before_its_mark_or_its_job_can_be_seen() -> None:
    memory = Memory(marked={"uid-one": NOW - 0.1})
    assert plan(world(pod(), jobs=[]), memory, NOW, room=5) == []
    tried_before = world(pod(job=7), jobs=[job(7, JobState.NODE_FAIL)])
    memory.since["retry 7"] = NOW - 60
    assert plan(tried_before, memory, NOW, room=5) == []


def test_a_mark_without_a_job_is_waited_for_and_then_submitted_again() -> None:
    memory = Memory()
    assert plan(world(pod(marked=True)), memory, NOW, room=5) == []
    assert plan(world(pod(marked=True), jobs=[]), memory, NOW, room=5) == []
    later = NOW + SUBMISSION_LIMIT + 1
    assert plan(world(pod(marked=True), jobs=[], asked=later), memory, later, room=5) == [Submit(pod=pod(marked=True))]


@pytest.mark.parametrize("number", ["abc", "", "-1", "1.5", "²", "9" * 5000, "7;8", "0", "4294967295"])
def test_a_number_that_a_tenant_has_made_up_is_none(number: str) -> None:
    """Who creates a pod writes its annotations."""
    body = pod(marked=True, annotations={NUMBER: number})
    assert plan(world(body, jobs=[]), Memory(), NOW, room=5) == []
    later = NOW + SUBMISSION_LIMIT + 1
    memory = Memory(since={"unseen uid-one": NOW})
    assert plan(world(body, jobs=[], asked=later), memory, later, room=5) == [Submit(pod=body)]


def test_a_mark_whose_job_came_through_gets_its_number() -> None:
    body = pod(marked=True)
    assert plan(world(body, jobs=[job(7)]), Memory(), NOW, room=5) == [Number(pod=body, job=7)]


def test_of_two_jobs_for_one_pod_the_first_stays() -> None:
    found = plan(world(pod(job=7), jobs=[job(8, JobState.PENDING), job(7)]), Memory(), NOW, room=5)
    assert found == [Cancel(jobs=(8,), why="job 7 is for the same pod", only_pending=True)]


def test_of_two_jobs_for_one_pod_the_one_that_runs_stays() -> None:
    found = plan(world(pod(job=8), jobs=[job(7, JobState.PENDING), job(8)]), Memory(), NOW, room=5)
    assert found == [Cancel(jobs=(7,), why="job 8 is for the same pod", only_pending=True)]


def test_of_two_jobs_for_one_pod_that_run_both_stay() -> None:
    """Job 7 may have taken the pod of job 8, and job 8 another that waited: whoever is left over ends itself."""
    assert plan(world(pod(job=7), jobs=[job(7), job(8)]), Memory(), NOW, room=5) == []


def test_a_pod_says_why_it_waits_once() -> None:
    body, memory = pod(job=7), Memory()
    queued = world(body, jobs=[job(7, JobState.PENDING, reason="Priority")])
    assert plan(queued, memory, NOW, room=5) == [Tell(pod=body, text="job 7 is pending in main (Priority)")]
    memory.told["uid-one"] = "job 7 is pending in main (Priority)"
    assert plan(queued, memory, NOW, room=5) == []


NOON = int(dt.datetime(2026, 1, 1, 12).astimezone().timestamp())  # here: what users are shown is local time


def test_when_a_job_may_start_is_not_said_at_every_guess() -> None:
    def guessed(start: int, reason: str = "Priority") -> World:
        return world(body, jobs=[replace(job(7, JobState.PENDING, reason=reason), start=start)])

    def told(state: World, now: float) -> list[str]:
        texts = [action.text for action in plan(state, memory, now, room=5) if isinstance(action, Tell)]
        memory.told["uid-one"] = texts[0] if texts else memory.told["uid-one"]
        return texts

    body, memory = pod(job=7), Memory()
    assert told(guessed(NOON), NOW) == ["job 7 is pending in main (Priority), expected to start 2026-01-01T12:00:00"]
    assert told(guessed(NOON + 60), NOW + 1) == []
    assert told(guessed(NOON + 120), NOW + CONDITION_INTERVAL + 1) == [
        "job 7 is pending in main (Priority), expected to start 2026-01-01T12:02:00"
    ]
    assert told(guessed(NOON + 120, "Resources"), NOW + CONDITION_INTERVAL + 2) != []


def test_a_job_whose_node_does_not_come_is_ended() -> None:
    memory = Memory()
    assert plan(world(pod(job=7), jobs=[job(7)]), memory, NOW, room=5) == []
    found = plan(world(pod(job=7), jobs=[job(7)]), memory, NOW + JOIN_LIMIT + 1, room=5)
    assert found == [Cancel(jobs=(7,), why="its node did not come up", kill=True)]


def test_a_node_that_has_taken_its_pod_and_does_not_get_ready_is_ended_too() -> None:
    memory, bound = Memory(), world(pod(job=7, node="job-7"), jobs=[job(7)], nodes=[node("job-7")])
    assert plan(bound, memory, NOW, room=5) == []
    assert plan(bound, memory, NOW + JOIN_LIMIT + 1, room=5) == [
        Cancel(jobs=(7,), why="its node did not come up", kill=True)
    ]
    ready = node("job-7")
    ready["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    pulls = world(pod(job=7, node="job-7"), jobs=[job(7)], nodes=[ready])
    assert plan(pulls, memory, NOW + JOIN_LIMIT + 1, room=5) == []


def test_who_cancels_a_job_that_waits_ends_its_pod() -> None:
    body = pod(job=7)
    found = plan(world(body, jobs=[job(7, JobState.CANCELLED)]), Memory(), NOW, room=5)
    assert found == [Fail(pod=body, job=7, state=JobState.CANCELLED)]


def test_a_job_that_failed_before_its_pod_began_is_tried_again_later() -> None:
    body, memory = pod(job=7), Memory()
    state = world(body, jobs=[job(7, JobState.NODE_FAIL)])
    (told,) = plan(state, memory, NOW, room=5)
    assert isinstance(told, Tell)
    assert "lost its host" in told.text
    assert plan(state, memory, NOW + 1, room=5) == []
    assert plan(state, memory, NOW + 60, room=5) == [Submit(pod=body)]


def test_a_job_that_the_queue_has_forgotten_is_asked_for() -> None:
    body = pod(job=7)
    assert plan(world(body, jobs=[]), Memory(), NOW, room=5) == []
    memory = missing(7)
    assert plan(world(body, jobs=[]), memory, NOW, room=5) == [AskAccounting(jobs=(7,))]
    memory.ended[7] = ended("uid-one")
    assert plan(world(body, jobs=[]), memory, NOW, room=5) == [Fail(pod=body, job=7, state=JobState.CANCELLED)]


def test_all_forgotten_jobs_are_asked_for_at_once_the_oldest_first() -> None:
    pods = [pod(f"p{number}", job=number) for number in range(1, MAX_ACCOUNTING_JOBS + 50)]
    memory = missing(*range(1, MAX_ACCOUNTING_JOBS + 50))
    memory.since["missing 120"] = NOW - 90
    (asked,) = plan(world(*pods, jobs=[]), memory, NOW, room=5)
    assert isinstance(asked, AskAccounting)
    assert asked.jobs == (120, *range(1, MAX_ACCOUNTING_JOBS))
    memory.next_accounting = NOW + 1
    assert plan(world(*pods, jobs=[]), memory, NOW, room=5) == []


@pytest.mark.parametrize("claims", [(), ("uid-two",), ("elastic-1",)])
def test_a_job_that_a_pod_only_says_is_its_own_tells_nothing_and_ends_nothing(claims: tuple[str, ...]) -> None:
    """Who creates a pod writes its annotations: any job of the user's can be in there."""
    body, memory = pod(job=7), missing(7)
    memory.ended[7] = ended(*claims)
    (told,) = plan(world(body, jobs=[]), memory, NOW, room=5)
    assert isinstance(told, Tell)
    assert "does not remember how it ended" in told.text
    assert plan(world(body, jobs=[]), memory, NOW + 60, room=5) == [Submit(pod=body)]


def test_neither_does_a_job_of_another_pod_that_is_still_in_the_queue() -> None:
    state = world(pod(job=7), jobs=[job(7, JobState.CANCELLED, uid="uid-two")])
    (told,) = plan(state, Memory(), NOW, room=5)
    assert isinstance(told, Tell)
    assert "cancelled" not in told.text.lower()


@pytest.mark.parametrize(("claims", "state"), [((), None), (("uid-two",), JobState.CANCELLED)])
def test_a_pod_on_a_node_learns_how_its_job_ended_if_it_was_one_of_this_cluster(
    claims: tuple[str, ...], state: JobState | None
) -> None:
    body, memory = pod(node="job-7", phase="Running"), missing(7)
    memory.ended[7] = ended(*claims)
    assert plan(world(body, jobs=[]), memory, NOW, room=5) == [Fail(pod=body, job=7, state=state)]


def test_what_accounting_said_is_forgotten_with_the_pod_that_named_the_job() -> None:
    memory = Memory(ended={number: ended() for number in range(1, 10)})
    pods = [pod("a", job=3), pod("b", node="job-4"), pod("c", annotations={NUMBER: "x"})]
    memory.forget({body["metadata"]["uid"]: body for body in pods}, set(), NOW)
    assert sorted(memory.ended) == [3, 4]


def test_a_pod_whose_node_died_has_failed_for_slurms_reason() -> None:
    body = pod(job=7, node="job-7", phase="Running")
    assert plan(world(body, jobs=[job(7)]), Memory(), NOW, room=5) == []
    assert plan(world(body), Memory(), NOW, room=5) == []
    found = plan(world(body, jobs=[job(7, JobState.OUT_OF_MEMORY)]), Memory(), NOW, room=5)
    assert found == [Fail(pod=body, job=7, state=JobState.OUT_OF_MEMORY)]


def test_a_pod_that_is_younger_than_our_look_at_the_queue_is_left_alone() -> None:
    body = pod(job=9, node="job-9", phase="Running")
    state = world(
        body, jobs=[job(7)], nodes=[node("job-9")], files={1: NodeRecord(name="job-9", job=9, state=NodeState.RUNNING)}
    )
    assert plan(state, Memory(), NOW, room=5) == []


def test_a_deleted_pod_does_not_wait_for_a_dead_kubelet() -> None:
    body = pod(job=7, node="job-7", phase="Running", deleted=True)
    found = plan(world(body, jobs=[job(7, JobState.NODE_FAIL)]), Memory(), NOW, room=5)
    assert found == [Fail(pod=body, job=7, state=JobState.NODE_FAIL), Remove(pod=body)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Running"])
def test_a_pod_that_only_a_finalizer_keeps_is_not_removed_again(phase: str) -> None:
    body = pod(job=7, node="job-7", phase=phase, deleted=True)
    body["metadata"] |= {"finalizers": ["example.com/wait"], "deletionGracePeriodSeconds": 30}
    state = world(body, jobs=[job(7, JobState.NODE_FAIL)])
    assert Remove(pod=body) in plan(state, Memory(), NOW, room=5)
    body["metadata"]["deletionGracePeriodSeconds"] = 0
    assert Remove(pod=body) not in plan(state, Memory(), NOW, room=5)


def test_a_job_without_a_pod_is_cancelled_if_it_waits_and_has_a_moment_if_it_runs() -> None:
    memory = Memory()
    waits = world(jobs=[job(7, JobState.PENDING), job(8, uid="uid-two")])
    assert plan(waits, memory, NOW, room=5) == [Cancel(jobs=(7,), why="its pod was deleted", only_pending=True)]
    assert Cancel(jobs=(8,), why="its pod was deleted") in plan(waits, memory, NOW + LEAVE_LIMIT + 1, room=5)


def test_elastic_nodes_belong_to_no_pod() -> None:
    memory = Memory()
    state = world(jobs=[job(7, JobState.PENDING, uid="elastic-1")])
    assert plan(state, memory, NOW, room=5) == []


def test_any_pod_of_a_node_that_died_has_failed_and_one_that_is_done_keeps_no_elastic_node() -> None:
    runs, done = (
        pod(name, node="job-7", phase=phase, schedulerName="default-scheduler")
        for name, phase in (("runs", "Running"), ("done", "Succeeded"))
    )
    dead = plan(world(runs, done, jobs=[job(7, JobState.NODE_FAIL, uid="elastic-1")]), Memory(), NOW, room=5)
    assert dead == [Fail(pod=runs, job=7, state=JobState.NODE_FAIL)]
    memory, alive = Memory(), world(runs, done, jobs=[job(7, uid="elastic-1")])
    assert plan(alive, memory, NOW, room=5) == []
    assert plan(alive, memory, NOW + 10 * LEAVE_LIMIT, room=5) == []


def test_a_job_that_outlives_its_pod_is_ended() -> None:
    body, memory = pod(job=7, node="job-7", phase="Succeeded"), Memory()
    assert plan(world(body, jobs=[job(7)]), memory, NOW, room=5) == []
    assert plan(world(body, jobs=[job(7)]), memory, NOW + LEAVE_LIMIT + 1, room=5) == [
        Cancel(jobs=(7,), why="its pod has ended")
    ]


def test_a_job_may_outlive_its_pod_with_others_that_follow_it() -> None:
    done, memory = pod(job=7, node="job-7", phase="Succeeded"), Memory()
    other = pod("two", job=8, node="job-7", phase="Running")
    between, busy = world(done, jobs=[job(7)]), world(done, other, jobs=[job(7)])
    assert plan(between, memory, NOW, room=5) == []
    assert plan(busy, memory, NOW + 10 * LEAVE_LIMIT, room=5) == []
    assert plan(between, memory, NOW + 20 * LEAVE_LIMIT, room=5) == []  # it has just ended
    assert plan(between, memory, NOW + 22 * LEAVE_LIMIT, room=5) == [Cancel(jobs=(7,), why="its pod has ended")]
    deleted = world(other, jobs=[job(7)])
    assert plan(deleted, Memory(since={"idle 7": 0.0}), NOW, room=5) == []


def test_jobs_whose_pods_run_elsewhere_are_taken_back_in_one_call() -> None:
    pods = [pod(f"{n}", job=8 + n, node="job-7", phase="Running") for n in range(2)]
    waiting = [job(8 + n, JobState.PENDING, uid=f"uid-{n}") for n in range(2)]
    found = plan(world(*pods, jobs=[job(7, uid="uid-0"), *waiting]), Memory(), NOW, room=5)
    assert found == [Cancel(jobs=(8, 9), why="another job had room for its pod", only_pending=True)]
    running = [job(8, uid="uid-0"), job(9, uid="uid-1")]  # they find it out themselves
    assert plan(world(*pods, jobs=[job(7, uid="uid-0"), *running]), Memory(), NOW, room=5) == []


def test_a_job_is_not_cancelled_again_before_slurm_was_asked_again() -> None:
    jobs = [job(7, JobState.PENDING), job(8, JobState.PENDING)]
    told = Memory(cancelled={8: NOW})
    double = Cancel(jobs=(8,), why="job 7 is for the same pod", only_pending=True)
    assert double not in plan(world(pod(job=7), jobs=jobs, asked=NOW - 0.5), told, NOW, room=5)
    assert double in plan(world(pod(job=7), jobs=jobs, asked=NOW + 0.5), told, NOW + 1, room=5)
    told.forget({}, {7}, NOW)
    assert told.cancelled == {}


def test_jobs_that_wait_for_nothing_are_cancelled_together_once_for_each_answer_of_slurm() -> None:
    elsewhere = pod("0", job=8, node="job-7", phase="Running")
    orphans = [job(9 + n, JobState.PENDING, uid=f"uid-gone-{n}") for n in range(3)]
    jobs = [job(7, uid="uid-0"), job(8, JobState.PENDING, uid="uid-0"), *orphans]
    told = Memory(cancelled={6: NOW})
    assert plan(world(elsewhere, jobs=jobs, asked=NOW - 0.5), told, NOW, room=5) == []
    assert plan(world(elsewhere, jobs=jobs, asked=NOW + 0.5), told, NOW + 1, room=5) == [
        Cancel(jobs=(9, 10, 11), why="its pod was deleted", only_pending=True),
        Cancel(jobs=(8,), why="another job had room for its pod", only_pending=True),
    ]


def test_a_pod_that_slurm_ended_says_so() -> None:
    body = pod(job=7, node="job-7", phase="Failed", annotations={pod_status.EVICTED: "true"})
    body["status"]["reason"] = "DeadlineExceeded"
    found = plan(world(body, jobs=[job(7, JobState.CANCELLED)]), Memory(), NOW, room=5)
    assert found == [Explain(pod=body, job=7, state=JobState.CANCELLED)]
    body["status"] |= pod_status.explanation(7, JobState.CANCELLED, "now")
    assert plan(world(body, jobs=[job(7, JobState.CANCELLED)]), Memory(), NOW, room=5) == []


def test_a_node_stays_as_long_as_pods_of_it_do() -> None:
    done = pod(job=7, node="job-7", phase="Succeeded")
    ended = [job(7, JobState.COMPLETED)]
    assert plan(world(done, jobs=ended, nodes=[node("job-7")]), Memory(), NOW, room=5) == [Retire(node="job-7")]
    assert plan(world(done, jobs=ended, nodes=[node("job-7", ARCHIVE_PORT)]), Memory(), NOW, room=5) == []
    assert plan(world(jobs=ended, nodes=[node("job-7", ARCHIVE_PORT)]), Memory(), NOW, room=5) == [Forget(node="job-7")]


def test_an_index_is_free_when_nobody_can_take_the_new_node_for_the_old_one() -> None:
    ended, retired = [job(7, JobState.COMPLETED)], node("job-7", ARCHIVE_PORT)
    done = pod(job=7, node="job-7", phase="Succeeded")
    orderly = {3: NodeRecord(name="job-7", job=7, state=NodeState.ENDED)}
    assert plan(world(done, jobs=ended, nodes=[retired], files=orderly), Memory(), NOW, room=5) == [
        FreeIndex(index=3, node="job-7")
    ]
    assert FreeIndex(index=3, node="job-7") not in plan(
        world(done, jobs=ended, nodes=[node("job-7")], files=orderly), Memory(), NOW, room=5
    )
    killed = {3: NodeRecord(name="job-7", job=7, state=NodeState.RUNNING, links=1)}
    memory = Memory()
    assert plan(world(done, jobs=ended, nodes=[retired], files=killed), memory, NOW, room=5) == []
    assert plan(world(done, jobs=ended, nodes=[retired], files=killed), memory, NOW + 120, room=5) == [
        FreeIndex(index=3, node="job-7")
    ]
    assert plan(world(done, jobs=[job(7)], nodes=[retired], files=orderly), Memory(), NOW, room=5) == []


def test_a_thousand_pods_that_wait_are_looked_at_in_less_than_a_second() -> None:
    """Not a benchmark: it would have to be a hundred times slower to fail."""
    pods = [pod(f"p{number}", job=number + 1) for number in range(1000)]
    jobs = [job(number + 1, JobState.PENDING, uid=f"uid-p{number}") for number in range(1000)]
    assert len(plan(world(*pods, jobs=jobs), Memory(), NOW, room=5)) == 1000


def test_notes_that_somebody_else_wrote_stop_nothing() -> None:
    """Whoever makes a pod can write what only we should; all other pods go on."""
    for text in ("x", "0x7f", "-1", "9" * 5000, "\u00b2", ""):
        forged = pod("forged", marked=True, annotations={"pinnace.dev/job": text})
        assert plan(world(forged, pod(), jobs=[]), Memory(), NOW, room=5) == [Submit(pod=pod())]


def test_answers_without_a_job_that_do_not_follow_one_another_prove_nothing() -> None:
    """Neither is the pod of a job that runs failed, nor one that was marked submitted again."""
    runs, marked = pod(job=7, node="job-7", phase="Running"), pod("two", marked=True)
    memory, now = Memory(), NOW
    for jobs in ([], [job(7), job(8, uid="uid-two")]) * 3:
        now += SUBMISSION_LIMIT + 1
        found = plan(world(runs, marked, jobs=jobs, asked=now), memory, now, room=5)
        assert not any(isinstance(action, Fail | AskAccounting | Submit) for action in found), jobs
