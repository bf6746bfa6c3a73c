"""Nodes that are looked for: those that are there are found beside those that are not."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from pinnace.network import lookup
from pinnace.network.links import MAX_LOOKUP_BYTES, Link
from pinnace.network.lookup import Lookup
from pinnace.network.packet_loop import PythonPacketLoop, frame_header

LIMIT = 10.0
HERE = ("127.0.0.1", 1)


@dataclass(eq=False)
class Waiting:
    peer: int
    there: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)

    def found(self) -> None:
        self.there.set()

    def give_up(self) -> None:
        self.given_up.set()


def test_a_node_is_found_at_once_or_when_it_comes() -> None:
    known = {1: HERE}
    looking = Lookup(known.get)
    first, second = Waiting(1), Waiting(2)
    for wanted in (first, second):
        looking.request(wanted)
    assert first.there.wait(LIMIT)
    assert not second.there.wait(2 * lookup.LOOKUP_INTERVAL)
    known[2] = HERE
    assert second.there.wait(LIMIT)
    assert not first.given_up.is_set()


def test_whoever_tries_every_address_costs_a_bounded_table_and_is_in_nobodys_way() -> None:
    threads = threading.active_count()
    looking = Lookup({7: HERE}.get)
    scan = [Waiting(number) for number in range(1000, 6000)]
    for wanted in scan:
        looking.request(wanted)
    real = Waiting(7)
    begin = time.monotonic()
    looking.request(real)
    assert real.there.wait(LIMIT)
    assert time.monotonic() - begin < 5
    assert threading.active_count() == threads + 1
    assert scan[0].given_up.is_set()
    assert sum(not wanted.given_up.is_set() for wanted in scan) <= lookup.MAX_LOOKUPS


def test_a_record_that_nobody_can_read_is_none() -> None:
    for error in (PermissionError(), ValueError(), KeyError("address")):

        def fail(_peer: int, error: Exception = error) -> None:
            raise error

        assert Lookup(fail).find(3) is None


def test_frames_for_nobody_are_kept_in_small_numbers() -> None:
    """64 KiB each, to a node that is not there."""
    loop = PythonPacketLoop([-1])
    link = Link(loop.queues[0], 0, 3, b"s" * 32, Lookup(lambda _: None), loop=loop)
    frame = memoryview(frame_header(0, 65000) + bytes(65000))
    for _ in range(100):
        link.send(frame)
    assert sum(map(len, link._queue)) <= MAX_LOOKUP_BYTES
    link.give_up()
    assert not link._queue
