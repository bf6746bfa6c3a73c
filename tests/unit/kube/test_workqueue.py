"""What a work queue hands out, and when."""

from __future__ import annotations

import threading
import time
from queue import Empty, Queue

import pytest

from pinnace.kube.workqueue import Backoff, Key, WorkQueue, namespace_of

PER_NAMESPACE = 4
DELAYS = (0.0, 0.1, 30.0)
ONE = ("kind", "a/1")


def queue() -> WorkQueue:
    return WorkQueue(DELAYS, per_namespace=PER_NAMESPACE)


def taken_key(work: WorkQueue) -> Key:
    key = work.get()
    assert key
    return key


def test_namespaces_take_turns() -> None:
    work = queue()
    for number in range(10_000):
        work.add(("kind", f"flood/{number}"))
    work.add(("kind", "other/1"))
    taken = [work.get() for _ in range(2)]
    assert ("kind", "other/1") in taken
    more = [taken_key(work) for _ in range(PER_NAMESPACE - 1)]
    assert all(key[1].startswith("flood/") for key in more)
    # All workers that one namespace may have are busy with it: the next is for others.
    waiting = threading.Thread(target=lambda: taken.append(work.get()), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    work.add(("kind", "other/2"))
    waiting.join(10)
    assert taken[-1] == ("kind", "other/2")
    work.done(more[0])
    assert taken_key(work)[1].startswith("flood/")


@pytest.mark.parametrize("delay", [1e15, 9.2e18, float("inf")])
def test_a_delay_has_a_limit(delay: float) -> None:
    work, taken = queue(), Queue[object]()
    work.add_after(("kind", "a/later"), delay)
    threading.Thread(target=lambda: taken.put(work.get()), daemon=True).start()
    with pytest.raises(Empty):
        taken.get(timeout=0.3)
    work.add(("kind", "a/now"))
    assert taken.get(timeout=10) == ("kind", "a/now")


def test_what_changes_meanwhile_is_handed_out_again() -> None:
    work = queue()
    work.add(("kind", "a/1"))
    assert work.get() == ("kind", "a/1")
    work.add(("kind", "a/1"))
    work.add(("kind", "a/1"))
    work.add(("kind", "a/2"))
    assert work.get() == ("kind", "a/2")
    work.done(("kind", "a/1"))
    assert work.get() == ("kind", "a/1")


def test_a_key_is_handed_out_once_however_often_it_is_added() -> None:
    work = queue()
    for _ in range(3):
        work.add(ONE)
    work.add_after(ONE, 0.01)
    assert len(work) == 1
    assert work.get() == ONE
    assert work.get(timeout=0.1) is None


def test_a_delay_is_waited_for_and_can_be_brought_forward() -> None:
    work = queue()
    work.add_after(ONE, 0.2)
    assert work.get(timeout=0.05) is None
    assert work.get(timeout=10) == ONE
    work.done(ONE)
    work.add_after(ONE, 60.0)
    work.add(ONE)
    assert work.get(timeout=0) == ONE
    assert not work


def test_failures_are_counted_until_they_are_forgotten() -> None:
    backoff = Backoff[str](DELAYS)
    assert [backoff.next_delay("a") for _ in range(5)] == [0.0, 0.1, 30.0, 30.0, 30.0]
    assert backoff.next_delay("b") == 0.0
    backoff.forget_others({"a": "anything"})
    assert (backoff.failures("a"), backoff.failures("b")) == (5, 0)
    backoff.forget("a")
    assert backoff.next_delay("a") == 0.0


def test_what_fails_is_processed_again_and_the_rest_goes_on() -> None:
    work, seen, failures = queue(), list[Key](), list[str]()

    def reconcile(key: Key) -> float | None:
        seen.append(key)
        if key == ONE and len(failures) < 2:
            raise TypeError("not understood")
        return None

    work.add(ONE)
    work.add(("kind", "b/1"))
    while work.process_next(reconcile, lambda key, error: failures.append(f"{key[1]} {error}"), timeout=1.0):
        pass
    assert failures == ["a/1 not understood"] * 2
    assert seen.count(ONE) == 3
    assert seen.count(("kind", "b/1")) == 1
    assert work.num_requeues(ONE) == 0
    assert not work


def test_what_wants_to_be_seen_again_is() -> None:
    work, delays = queue(), iter([0.0, None])
    work.add(ONE)
    for expected in (True, True, False):
        assert work.process_next(lambda _: next(delays), lambda *_: None, timeout=0.1) is expected


def test_nothing_is_handed_out_after_the_end() -> None:
    work, ended = queue(), threading.Event()
    work.add(ONE)
    assert work.get() == ONE

    def end() -> None:
        work.shut_down(10.0)
        ended.set()

    threading.Thread(target=end, daemon=True).start()
    work.add(("kind", "a/2"))
    assert not ended.wait(0.2)
    begun = time.monotonic()
    assert work.get(timeout=0.1) is None
    assert time.monotonic() - begun < 5
    work.done(ONE)
    assert ended.wait(10)


def test_what_is_in_no_namespace() -> None:
    assert namespace_of(("nodes", "n1")) == ""
    assert namespace_of(("pods", "a/n1")) == "a"
