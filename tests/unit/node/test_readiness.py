"""What services wait for."""

from __future__ import annotations

import socket
import time

from pinnace.node.readiness import CONNECT_TIMEOUT, after, listening, once
from testbed.waiting import wait_until


def test_a_delay() -> None:
    assert not after(60.0)()
    assert after(0.0)()


def test_a_yes_is_not_asked_for_again() -> None:
    answers = [False, True]
    ask = once(lambda: answers.pop(0))
    assert [ask(), ask(), ask()] == [False, True, True]


def test_whether_something_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wait_until("an answer", listening("127.0.0.1", port), limit=30)
    nobody = listening("127.0.0.1", port)
    assert not nobody()
    with socket.create_server(("127.0.0.1", port)):
        wait_until("an answer at last", nobody, limit=30)


def test_nobody_waits_for_a_host_that_is_silent() -> None:
    """A server that has room for one call only, which nobody takes, is as silent as a host that is gone."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as first:
        first.connect(server.getsockname())
        silent = listening(*server.getsockname())
        begin = time.monotonic()
        for _ in range(10):
            assert not silent()
        assert time.monotonic() - begin < CONNECT_TIMEOUT, "each would have taken a second"
        server.listen(16)  # room for whatever of the calls that were given up arrives late
        wait_until("an answer at last", silent, limit=30)
