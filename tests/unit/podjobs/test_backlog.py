"""A pass does a part of a long plan, and everything has its turn."""

from __future__ import annotations

from pinnace.podjobs.actions import Action, Cancel, Forget, Number, Tell
from pinnace.podjobs.backlog import MAX_ACTIONS, Backlog
from unit.podjobs.samples import pod


def test_a_short_plan_is_done_as_it_is() -> None:
    backlog = Backlog()
    plan: list[Action] = [Forget(node="job-1"), Tell(pod=pod(), text="a"), Cancel(jobs=(2, 3), why="b")]
    assert backlog.take(plan) == plan
    assert not backlog.waiting


def test_what_comes_again_in_every_plan_keeps_nothing_else_from_being_done() -> None:
    tenants = [Number(pod=pod(f"p{number}"), job=1) for number in range(5 * MAX_ACTIONS // 2)]
    left: list[Action] = [Cancel(jobs=(7,), why="its pod was deleted"), Forget(node="job-7")]
    backlog, passes = Backlog(), 0
    while left:
        done = backlog.take([*tenants, *left])
        assert len(done) == MAX_ACTIONS
        left = [action for action in left if action not in done]
        passes += 1
    assert passes == 3


def test_what_is_new_comes_after_what_waits() -> None:
    backlog, late = Backlog(), Forget(node="job-7")
    for round_ in range(2):
        fresh = [Tell(pod=pod(f"{round_}-{number}"), text="") for number in range(MAX_ACTIONS)]
        done = backlog.take([*fresh, late])
        assert (late in done) is (round_ > 0)


def test_the_words_of_an_action_do_not_change_its_place() -> None:
    backlog = Backlog()
    first = [Tell(pod=pod(f"{number}"), text="a") for number in range(MAX_ACTIONS + 1)]
    assert first[-1] not in backlog.take(first)
    again = [Tell(pod=pod(f"{number}"), text="b") for number in range(MAX_ACTIONS + 1)]
    assert backlog.take(again)[0] == again[-1]
