"""Only those who know the cluster's secret get a link, on either end."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from pinnace.network.handshake import (
    DIGEST_SIZE,
    NO_NODE,
    NONCE_SIZE,
    HandshakeError,
    Protocol,
    complete,
    dialling,
    listener_name,
    listening,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = b"s" * 32
HERE = listener_name(0, "192.0.2.1", 4000)


def dial(
    sock: socket.socket, secret: bytes, index: int, protocol: Protocol = Protocol.LINKS, listener: bytes = HERE
) -> None:
    complete(sock, dialling(secret, protocol, index, listener))


def answer(
    sock: socket.socket,
    secret: bytes = SECRET,
    protocols: Callable[[int], Protocol | None] = lambda _index: Protocol.LINKS,
    timeout: float = 10.0,
) -> int:
    return complete(sock, listening(secret, protocols, HERE), timeout)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialler = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with dialler, accepted:
        yield dialler, accepted


def beside(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Do something in a thread; what it gives or raises is in the list afterwards."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except (HandshakeError, OSError) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def answering(
    accepted: socket.socket, secret: bytes = SECRET, protocols: Callable[[int], Protocol | None] | None = None
) -> tuple[threading.Thread, list[object]]:
    """Answer as a node does, which hangs up on strangers."""

    def run() -> int:
        try:
            return answer(accepted, secret, protocols or (lambda _index: Protocol.LINKS))
        except HandshakeError:
            accepted.close()
            raise

    return beside(run)


def test_both_ends_with_the_secret_agree_and_the_listener_learns_who(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    dialler, accepted = pair
    thread, outcome = answering(accepted)
    dial(dialler, SECRET, 7)
    thread.join(5)
    assert outcome == [7]
    dialler.sendall(b"frames")
    assert accepted.recv(9) == b"frames"
    assert dialler.gettimeout() is None
    assert accepted.gettimeout() is None


def test_a_dialler_with_another_secret_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair
    thread, outcome = answering(accepted)
    with pytest.raises(HandshakeError):
        dial(dialler, b"x" * 32, 1)
    thread.join(5)
    assert isinstance(outcome[0], HandshakeError)


def test_a_listener_without_the_secret_is_not_believed(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair

    def pretend() -> None:
        accepted.sendall(os.urandom(NONCE_SIZE))
        accepted.recv(999)
        accepted.sendall(os.urandom(DIGEST_SIZE))

    thread, _ = beside(pretend)
    with pytest.raises(HandshakeError, match="not of this cluster"):
        dial(dialler, SECRET, 1)
    thread.join(5)


def test_a_listener_cannot_send_our_own_proof_back(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair

    def mirror() -> None:
        accepted.sendall(os.urandom(NONCE_SIZE))
        accepted.sendall(accepted.recv(999)[-DIGEST_SIZE:])

    thread, _ = beside(mirror)
    with pytest.raises(HandshakeError):
        dial(dialler, SECRET, 1)
    thread.join(5)


def test_what_was_overheard_once_opens_nothing_later(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair
    overheard: list[bytes] = []

    def listen_in() -> None:
        accepted.sendall(os.urandom(NONCE_SIZE))
        overheard.append(accepted.recv(999))
        accepted.close()

    thread, _ = beside(listen_in)
    with pytest.raises(HandshakeError):
        dial(dialler, SECRET, 1)
    thread.join(5)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread, outcome = answering(theirs)
        ours.recv(NONCE_SIZE)
        ours.sendall(overheard[0])
        thread.join(5)
    assert isinstance(outcome[0], HandshakeError)


def test_an_index_cannot_be_changed_on_the_way(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair
    ours, theirs = socket.socketpair()

    def relay() -> None:
        accepted.sendall(ours.recv(NONCE_SIZE))
        heard = accepted.recv(999)
        ours.sendall(b"\0\0\0\x09" + heard[4:])
        accepted.close()

    with ours, theirs:
        relaying, _ = beside(relay)
        thread, outcome = answering(theirs)
        with pytest.raises(HandshakeError):
            dial(dialler, SECRET, 1)
        relaying.join(5)
        thread.join(5)
    assert isinstance(outcome[0], HandshakeError)


@pytest.mark.parametrize(
    ("protocol", "listener"),
    [
        (Protocol.COPY, HERE),
        (Protocol.CONTROL, HERE),
        (Protocol.LINKS, listener_name(1, "192.0.2.1", 4000)),
        (Protocol.LINKS, listener_name(0, "192.0.2.2", 4000)),
        (Protocol.LINKS, listener_name(0, "192.0.2.1", 4001)),
    ],
    ids=["the ranks' copy", "the word to end", "another node", "another host", "another port"],
)
def test_a_proof_is_for_one_protocol_and_one_listener(
    pair: tuple[socket.socket, socket.socket], protocol: Protocol, listener: bytes
) -> None:
    """Whoever sits at a dead node's port can pass on what a dialler says to a node that lives, and gains nothing."""
    dialler, accepted = pair
    thread, outcome = answering(accepted)
    with pytest.raises(HandshakeError):
        dial(dialler, SECRET, 1, protocol, listener)
    thread.join(5)
    assert isinstance(outcome[0], HandshakeError)


def test_an_index_that_has_no_business_here_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair
    thread, outcome = answering(accepted, protocols=lambda index: None if index == 3 else Protocol.LINKS)
    with pytest.raises((HandshakeError, ConnectionResetError)):
        dial(dialler, SECRET, 3)
    thread.join(5)
    assert isinstance(outcome[0], HandshakeError)


def test_the_users_command_has_a_protocol_of_its_own(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair
    thread, outcome = answering(
        accepted, protocols=lambda index: Protocol.CONTROL if index == NO_NODE else Protocol.LINKS
    )
    dial(dialler, SECRET, NO_NODE, Protocol.CONTROL)
    thread.join(5)
    assert outcome == [NO_NODE]


def test_a_stranger_who_says_nothing_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    _, accepted = pair
    with pytest.raises(TimeoutError):
        answer(accepted, timeout=0.1)


def test_the_time_limit_is_for_the_whole_and_not_for_each_byte(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair
    done = threading.Event()

    def trickle() -> None:
        while not done.wait(0.05):
            dialler.send(b"x")

    thread, _ = beside(trickle)
    with pytest.raises(TimeoutError):
        answer(accepted, timeout=0.4)
    done.set()
    thread.join(5)


def test_one_who_hangs_up_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    dialler, accepted = pair
    dialler.sendall(b"GET / HTTP/1.0\r\n\r\n")
    dialler.shutdown(socket.SHUT_WR)
    with pytest.raises(HandshakeError, match="hung up"):
        answer(accepted)
