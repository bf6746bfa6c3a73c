"""Who has to go when there are too many."""

from __future__ import annotations

from pinnace.network.quota import Quota


def filled(quota: Quota[str], **counts: int) -> Quota[str]:
    for source, count in counts.items():
        for number in range(count):
            quota.add(source, f"{source}{number}")
    return quota


def test_the_longest_idle_of_the_source_that_has_most() -> None:
    quota = filled(Quota(5), owner=2, stranger=3)
    assert quota.full
    assert quota.victim() == "stranger0"
    quota.touch("stranger", "stranger0")
    assert quota.victim() == "stranger1"


def test_what_has_ended_makes_room_once() -> None:
    quota = filled(Quota(3), one=3)
    quota.discard("one", "one0")
    quota.discard("one", "one0")
    quota.discard("another", "one1")
    assert len(quota) == 2
    assert not quota.full
    quota.discard("one", "one1")
    quota.discard("one", "one2")
    assert quota.victim() is None
