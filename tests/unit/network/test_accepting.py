"""Strangers at a port: bounded in number, time and cost, and never in the way of a peer."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.network import accepting
from pinnace.network.accepting import Acceptor
from pinnace.network.handshake import Protocol, complete, dialling, listener_name, listening
from unit.network.selecting import LimitedSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = b"s" * 32
LIMIT = 10.0


class Port:
    """A listener with an acceptor behind it, which runs until the test ends."""

    def __init__(self, admit: Callable[[socket.socket, int], None] | None = None, most: int = 8) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address: tuple[str, int] = self.listener.getsockname()
        self.name = listener_name(0, *self.address)
        self.admitted: list[int] = []
        self.sockets: list[socket.socket] = []
        self.acceptor = Acceptor(
            self.listener, lambda: listening(SECRET, lambda _: Protocol.LINKS, self.name), admit or self._admit, most
        )
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _admit(self, sock: socket.socket, index: int) -> None:
        self.sockets.append(sock)
        self.admitted.append(index)

    def _run(self) -> None:
        while not self.ended.is_set():
            self.acceptor.poll(0.02)

    def dial(self, index: int) -> socket.socket:
        sock = socket.create_connection(self.address, timeout=LIMIT)
        complete(sock, dialling(SECRET, Protocol.LINKS, index, self.name))
        return sock

    def close(self) -> None:
        self.ended.set()
        self.thread.join(LIMIT)
        while self.acceptor._drop_oldest():
            pass
        self.acceptor._selector.close()
        for sock in (self.listener, *self.sockets):
            sock.close()


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


def is_reset(sock: socket.socket) -> bool:
    """Whether the other end gives a connection up; it greets first."""
    sock.settimeout(LIMIT)
    try:
        while sock.recv(999):
            pass
    except ConnectionResetError:
        return True
    return False


def test_who_proves_itself_is_admitted_with_all_that_it_says_next(port: Port) -> None:
    with port.dial(7) as sock:
        sock.sendall(b"and then frames")
        deadline = time.monotonic() + LIMIT
        while not port.admitted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert port.admitted == [7]
        port.sockets[0].settimeout(LIMIT)
        assert port.sockets[0].recv(99) == b"and then frames"


def test_a_peer_gets_in_however_many_strangers_wait(port: Port) -> None:
    strangers = [socket.create_connection(port.address, timeout=LIMIT) for _ in range(100)]
    with port.dial(1):
        assert is_reset(strangers[0]), "the one that waited longest had to go"
    assert len(port.acceptor._pending) <= 8
    for sock in strangers:
        sock.close()


def test_garbage_is_answered_with_a_reset(port: Port) -> None:
    for garbage in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4, os.urandom(68), bytes(5000)):
        with socket.create_connection(port.address, timeout=LIMIT) as sock:
            sock.sendall(garbage)
            assert is_reset(sock)
    with port.dial(2):
        pass


def test_one_byte_now_and_then_holds_a_place_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_TIMEOUT", 0.5)
    port = Port()
    begin = time.monotonic()
    with socket.create_connection(port.address, timeout=LIMIT) as sock, contextlib.suppress(OSError):
        while time.monotonic() < begin + LIMIT:
            sock.send(b"x")
            time.sleep(0.05)
    assert time.monotonic() - begin < 5, "it was not reset"
    port.close()


def test_no_thread_to_be_had_is_the_end_of_one_connection_only() -> None:
    def admit(_sock: socket.socket, index: int) -> None:
        admitted.append(index)
        if index == 1:
            raise RuntimeError("can't start new thread")
        _sock.close()

    admitted: list[int] = []
    port = Port(admit)
    with port.dial(1) as sock:
        assert is_reset(sock)
    port.dial(2).close()
    port.close()
    assert admitted == [1, 2]


# In a process that may have few files: more strangers than that, and then a peer.
FEW_FILES = """
import resource, socket, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from pinnace.network.accepting import Acceptor
from pinnace.network.handshake import Protocol, listener_name, listening
listener = socket.create_server(("127.0.0.1", 0), backlog=512)
name = listener_name(0, *listener.getsockname())
print(listener.getsockname()[1], flush=True)
def admit(sock, index):
    print("admitted", index, flush=True)
Acceptor(listener, lambda: listening(sys.argv[1].encode(), lambda _: Protocol.LINKS, name), admit).run()
"""


def test_more_strangers_than_there_are_descriptors_do_not_end_the_loop() -> None:
    process = subprocess.Popen([sys.executable, "-c", FEW_FILES, SECRET.decode()], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    strangers: list[socket.socket] = []
    try:
        address = ("127.0.0.1", int(process.stdout.readline()))
        strangers += [socket.create_connection(address, timeout=LIMIT) for _ in range(200)]
        with socket.create_connection(address, timeout=LIMIT) as sock:
            complete(sock, dialling(SECRET, Protocol.LINKS, 3, listener_name(0, *address)))
            assert process.stdout.readline() == "admitted 3\n"
    finally:
        process.kill()
        process.wait(LIMIT)
        process.stdout.close()
        for sock in strangers:
            sock.close()


def test_the_limit_of_files_is_raised_as_far_as_the_site_allows() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 3000));"
        "from pinnace.network.accepting import raise_file_limit;"
        "print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["3000", "3000", "3000"]
    assert accepting.raise_file_limit() <= resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_a_kernel_that_watches_no_more_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", LimitedSelector)
    port = Port()
    try:
        with monkeypatch.context() as limited:
            limited.setattr(LimitedSelector, "full", True)
            refused = socket.socket()
            with refused, contextlib.suppress(ConnectionResetError):  # before connect() is done, or after
                refused.connect(port.address)
                assert is_reset(refused)
        port.dial(3).close()  # it answers with its own proof
    finally:
        port.close()
