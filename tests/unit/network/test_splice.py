"""Two joined sockets behave as one connection: data, ends, resets, and slow readers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.network import splice
from pinnace.network.quota import Quota
from unit.network.selecting import LimitedSelector

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


def through(destination: tuple[str, int], most: int = 1000) -> tuple[str, int]:
    """A splicer to a destination, for as long as this process lives: it ends with the agent, never by itself."""
    listener = socket.create_server(("127.0.0.1", 0))
    splicer = splice.Splicer()
    splicer.listen(listener, lambda _: (socket.socket(), destination), Quota(most))
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


def test_a_process_that_is_killed_resets_what_it_relayed(way: tuple[tuple[str, int], socket.socket]) -> None:
    """An orderly end would look as if all had been sent."""
    _, target = way
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = (
            "import socket, sys; from pinnace.network.quota import Quota; from pinnace.network.splice import Splicer\n"
            "splicer, port = Splicer(), int(sys.argv[2])\n"
            "listener, target = socket.socket(fileno=int(sys.argv[1])), ('127.0.0.1', port)\n"
            "splicer.listen(listener, lambda _: (socket.socket(), target), Quota(9)); splicer.run()"
        )
        argv = [sys.executable, "-c", program, str(listener.fileno()), str(target.getsockname()[1])]
        with subprocess.Popen(argv, pass_fds=[listener.fileno()]) as process:
            client, server = joined((listener.getsockname(), target))
            with client, server:
                client.sendall(b"question")
                assert server.recv(99) == b"question"
                server.sendall(b"answer, first ")
                assert client.recv(99) == b"answer, first "
                process.kill()
                for sock in (client, server):
                    with pytest.raises(ConnectionResetError):
                        sock.recv(99)


def test_connections_that_another_thread_hands_over_are_relayed() -> None:
    splicer = splice.Splicer()
    threading.Thread(target=splicer.run, daemon=True).start()
    quota: Quota[splice.Pair] = Quota(1)
    ends = []
    for number in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            pairs = []
            for _ in range(2):
                far = socket.create_connection(listener.getsockname(), timeout=LIMIT)
                pairs.append((far, listener.accept()[0]))
        (client, accepted), (server, connected) = pairs
        for sock in (accepted, connected):
            sock.setblocking(False)
        splicer.join(accepted, connected, quota)
        client.sendall(b"%d" % number)
        assert server.recv(9) == b"%d" % number
        ends.append((client, server))
    for sock in ends[0]:  # there was room for one
        with pytest.raises(ConnectionResetError):
            sock.recv(9)
    for sock in (*ends[0], *ends[1]):
        sock.close()


def test_a_destination_that_refuses_is_a_reset() -> None:
    # On a busy machine the reset is there before connect() has looked.
    with pytest.raises(ConnectionResetError), socket.create_connection(through(NO_ONE), timeout=LIMIT) as client:
        client.recv(1)


@pytest.mark.parametrize("pipe", [splice.PIPE_SIZE, 1 << 31], ids=["as asked for", "no more than the default"])
def test_a_reader_who_is_slow_holds_the_writer_up_and_costs_nothing(
    way: tuple[tuple[str, int], socket.socket], pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        splice, "PIPE_SIZE", pipe
    )  # the kernel refuses pipes of 2 GiB, as it does when a budget is spent
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


def test_connections_beyond_the_quota_cost_the_source_that_has_most() -> None:
    """All come from one address here, so it is the longest idle one that goes."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as target:
        target.settimeout(LIMIT)
        way = through(target.getsockname(), most=8), target
        idle = [joined(way) for _ in range(8)]
        used = idle[0]
        used[0].sendall(b"in use")
        assert used[1].recv(99) == b"in use"
        time.sleep(0.1)
        more = [joined(way) for _ in range(7)]
        used[0].sendall(b"still")
        assert used[1].recv(99) == b"still"
        for client, _ in idle[1:]:
            client.settimeout(LIMIT)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        for client, server in (*idle, *more):
            client.close()
            server.close()


def test_urgent_data_does_not_stop_what_comes_after_it(way: tuple[tuple[str, int], socket.socket]) -> None:
    """splice(2) does not go past it, and would be asked again and again. The urgent byte itself is left out."""
    client, server = joined(way)
    client.sendall(b"before")
    assert server.recv(99) == b"before"
    client.send(b"!", socket.MSG_OOB)
    client.sendall(b"after")
    client.shutdown(socket.SHUT_WR)
    assert everything(server) == b"after"
    server.sendall(b"answer")
    assert client.recv(99) == b"answer"
    client.close()
    server.close()


def test_a_kernel_that_watches_no_more_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", LimitedSelector)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as target:
        target.settimeout(LIMIT)
        way = through(target.getsockname(), most=8), target
        with monkeypatch.context() as limited:
            limited.setattr(LimitedSelector, "full", True)
            for _ in range(20):
                with pytest.raises(ConnectionResetError), socket.create_connection(way[0], timeout=LIMIT) as refused:
                    refused.recv(1)
                target.accept()[0].close()  # it was dialled, and given up
        client, server = joined(way)
        client.sendall(b"hello")
        assert server.recv(99) == b"hello"
        client.close()
        server.close()


# A proxy that may have few files. Its API client is known by the name that it asks for.
FEW_FILES = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from pinnace.network.quota import Quota
from pinnace.network.splice import Splicer, by_server_name
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
target = ("127.0.0.1", int(sys.argv[1]))
splicer = Splicer()
admission = by_server_name("known.example", Quota(20), Quota(10))
splicer.listen_for_tls(listener, lambda _: (socket.socket(), target), admission)
splicer.run()
"""


def hello(name: str) -> bytes:
    """What a TLS client says first."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("first", [b"", b"\x16", hello("stranger.example"), b"GET / HTTP/1.1\r\n\r\n"],
                         ids=["silent", "one byte", "another name", "no TLS"])  # fmt: skip
def test_strangers_at_the_api_are_not_in_the_way_of_its_user(first: bytes) -> None:
    target = socket.create_server(("127.0.0.1", 0), backlog=512)
    target.settimeout(0.2)
    argv = [sys.executable, "-c", FEW_FILES, str(target.getsockname()[1])]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    held: list[socket.socket] = []
    ended = threading.Event()

    def answer() -> None:
        """The API: says to everybody what it heard first."""
        while not ended.is_set():
            with contextlib.suppress(OSError):
                sock, _ = target.accept()
                sock.settimeout(0.2)
                held.append(sock)
                sock.sendall(sock.recv(9999))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        address = ("127.0.0.1", int(process.stdout.readline()))
        for _ in range(600):
            stranger = socket.create_connection(address, timeout=LIMIT)
            held.append(stranger)
            with contextlib.suppress(OSError):
                stranger.sendall(first)
        greeting = hello("known.example")
        for _ in range(10):
            with socket.create_connection(address, timeout=LIMIT) as client:
                client.sendall(greeting[:100])  # in pieces, as one that does not fit a packet
                time.sleep(0.02)
                client.sendall(greeting[100:])
                assert client.recv(9999) == greeting
        assert process.poll() is None
    finally:
        ended.set()
        target.close()
        process.kill()
        process.wait(LIMIT)
        thread.join(LIMIT)
        process.stdout.close()
        for sock in held:
            sock.close()


def test_a_stranger_who_will_not_say_more_is_refused_at_once() -> None:
    """The kernel says that there is something to read for as long as such a connection is held."""
    listener = socket.create_server(("127.0.0.1", 0))
    splicer = splice.Splicer()
    admission = splice.by_server_name("known.example", Quota(20), Quota(10))
    splicer.listen_for_tls(listener, lambda _: (socket.socket(), NO_ONE), admission)
    threading.Thread(target=splicer.run, daemon=True).start()
    with socket.create_connection(listener.getsockname(), timeout=splice.HELLO_TIMEOUT / 2) as client:
        client.sendall(b"\x16")
        client.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
