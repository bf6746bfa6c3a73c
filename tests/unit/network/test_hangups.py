"""One thread sees that any of many connections is closed."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack

from pinnace.network.hangups import HangupWatcher
from testbed.waiting import wait_until

LIMIT = 10.0


def test_all_that_are_closed_are_noticed_and_no_others() -> None:
    watcher, before = HangupWatcher(), threading.active_count()
    closed: list[socket.socket] = []
    with ExitStack() as stack:
        pairs = [tuple(map(stack.enter_context, socket.socketpair())) for _ in range(200)]
        for ours, _ in pairs:
            watcher.add(ours, closed.append)
        for _, theirs in pairs[::2]:
            theirs.close()
        wait_until("half of them", lambda: len(closed) == 100, limit=LIMIT)
        assert {id(sock) for sock in closed} == {id(ours) for ours, _ in pairs[::2]}
        assert threading.active_count() == before
        pairs[1][1].send(b"?")
        wait_until("one that speaks", lambda: len(closed) == 101, limit=LIMIT)


def test_a_connection_with_the_number_of_a_closed_one_is_another() -> None:
    watcher = HangupWatcher()
    closed: list[str] = []
    seconds: list[socket.socket] = []
    for number in range(200):
        ours, theirs = socket.socketpair()
        watcher.add(ours, lambda _, number=number: closed.append(f"first {number}"))  # type: ignore[misc]
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        theirs.close()
        seconds += socket.socketpair()
        watcher.add(seconds[-2], lambda _, number=number: closed.append(f"second {number}"))  # type: ignore[misc]
        time.sleep(0.001)
    assert not [name for name in closed if name.startswith("second")]
    for sock in seconds:
        sock.close()
    ours, theirs = socket.socketpair()
    with ours:
        watcher.add(ours, lambda _: closed.append("last"))
        theirs.close()
        wait_until("the last one", lambda: "last" in closed, limit=LIMIT)
