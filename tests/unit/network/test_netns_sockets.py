"""A socket made by one process is used by another."""

from __future__ import annotations

import socket
import threading

import pytest

from pinnace.network.netns_sockets import NetnsSockets, serve


def test_sockets_come_through_and_can_connect() -> None:
    outside, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=serve, args=(inside,))
    thread.start()
    with outside, inside, socket.create_server(("127.0.0.1", 0)) as listener:
        sockets = NetnsSockets(outside)
        for _ in range(3):
            with sockets.socket() as made:
                made.connect(listener.getsockname())
                accepted, _ = listener.accept()
                accepted.close()
        outside.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert not thread.is_alive()


def test_a_fabric_that_is_gone_is_an_error() -> None:
    outside, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inside.close()
    with outside, pytest.raises(OSError, match=r"gone|Broken pipe"):
        NetnsSockets(outside).socket()
