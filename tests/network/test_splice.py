"""Two joined sockets behave as one connection: data, ends, resets, and slow readers."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.network import splice

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 10
LARGE = os.urandom(1 << 20) * 8
NO_ONE = ("127.0.0.1", 1)  # nothing listens there


@pytest.fixture
def way() -> Iterator[tuple[tuple[str, int], socket.socket]]:
    """An address, and the listener that connections to it reach through a splicer."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(LIMIT)
        yield through(target.getsockname()), target


def through(destination: tuple[str, int]) -> tuple[str, int]:
    """A splicer to a destination, for as long as this process lives: it ends with the agent, never by itself."""
    listener = socket.create_server(("127.0.0.1", 0))
    splicer = splice.Splicer()
    splicer.listen(listener, lambda _: (socket.socket(), destination))
    threading.Thread(target=splicer.run, daemon=True).start()
    address: tuple[str, int] = listener.getsockname()
    return address


def joined(way: tuple[tuple[str, int], socket.socket]) -> tuple[socket.socket, socket.socket]:
    address, target = way
    client = socket.create_connection(address, timeout=LIMIT)
    server, _ = target.accept()
    server.settimeout(LIMIT)
    return client, server


def everything(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_bytes_go_both_ways(way: tuple[tuple[str, int], socket.socket]) -> None:
    client, server = joined(way)
    with client, server:
        client.sendall(b"question")
        assert server.recv(99) == b"question"
        server.sendall(b"answer")
        assert client.recv(99) == b"answer"


def test_one_side_may_end_while_the_other_goes_on(way: tuple[tuple[str, int], socket.socket]) -> None:
    """As `ssh host cat < file`, or HTTP/1.0 with a closed request: the answer comes after our end."""
    client, server = joined(way)
    with client, server:
        client.sendall(b"all that I have to say")
        client.shutdown(socket.SHUT_WR)
        assert everything(server) == b"all that I have to say"
        time.sleep(0.05)
        server.sendall(b"and now the answer")
        server.shutdown(socket.SHUT_WR)
        assert everything(client) == b"and now the answer"


def test_a_lot_arrives_whole_both_ways_at_once(way: tuple[tuple[str, int], socket.socket]) -> None:
    client, server = joined(way)
    received: dict[str, bytes] = {}

    def send(sock: socket.socket) -> None:
        sock.sendall(LARGE)
        sock.shutdown(socket.SHUT_WR)

    def receive(name: str, sock: socket.socket) -> None:
        received[name] = hashlib.sha256(everything(sock)).digest()

    with client, server:
        threads = [threading.Thread(target=send, args=(sock,)) for sock in (client, server)]
        threads += [threading.Thread(target=receive, args=pair) for pair in (("client", client), ("server", server))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    assert received == dict.fromkeys(("client", "server"), hashlib.sha256(LARGE).digest())


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_reset_is_passed_on_as_a_reset(way: tuple[tuple[str, int], socket.socket], who: str) -> None:
    """An application must not take a broken connection for an orderly end."""
    client, server = joined(way)
    broken, other = (client, server) if who == "client" else (server, client)
    with client, server:
        broken.sendall(b"half a mess")
        assert other.recv(99) == b"half a mess"
        reset(broken)
        with pytest.raises(ConnectionResetError):
            other.recv(99)


def test_a_reset_after_the_end_was_said_is_passed_on(way: tuple[tuple[str, int], socket.socket]) -> None:
    """`curl` that was killed after its request: the server must not keep its side for ever."""
    client, server = joined(way)
    with client, server:
        client.shutdown(socket.SHUT_WR)
        assert everything(server) == b""
        reset(client)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012 - which send notices is open
            for _ in range(100):
                server.sendall(b"into the void")
                time.sleep(0.01)


def test_a_destination_that_refuses_is_a_reset() -> None:
    # On a busy machine the reset is there before connect() has looked.
    with pytest.raises(ConnectionResetError), socket.create_connection(through(NO_ONE), timeout=LIMIT) as client:
        client.recv(1)


@pytest.mark.parametrize("pipe", [splice.PIPE, 1 << 31], ids=["as asked for", "no more than the default"])
def test_a_reader_who_is_slow_holds_the_writer_up_and_costs_nothing(
    way: tuple[tuple[str, int], socket.socket], pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splice, "PIPE", pipe)  # the kernel refuses pipes of 2 GiB, as it does when a budget is spent
    client, server = joined(way)
    sent = 0
    with client, server:
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):  # noqa: PT012 - until all buffers are full
            while True:
                sent += client.send(LARGE[:1000])
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.2, "the splicer must sleep while it can do nothing"
        client.shutdown(socket.SHUT_WR)
        assert len(everything(server)) == sent


def test_many_connections_do_not_disturb_each_other(way: tuple[tuple[str, int], socket.socket]) -> None:
    """More than the pipes of full size that the kernel grants a user (64 MiB of them)."""
    pairs = [joined(way) for _ in range(80)]
    for number, (client, _) in enumerate(pairs):
        client.sendall(f"number {number}".encode() + LARGE[:100_000])
        client.shutdown(socket.SHUT_WR)
    for number, (_, server) in enumerate(pairs):
        assert everything(server) == f"number {number}".encode() + LARGE[:100_000]
    for client, server in pairs:
        client.close()
        server.close()
