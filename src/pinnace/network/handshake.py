"""Who is at the other end of a connection: mutual proof that both know the cluster's secret.

    listener ──► nonce
    dialler  ──► index, nonce, HMAC(key, "dial" + both nonces + index + listener)
    listener ──► HMAC(key, "listen" + both nonces + index + listener)

The secret lies in the cluster's directory, which only its user can read. The key is derived from it and from the name
of the protocol, so that a proof for one protocol is worth nothing in another. ``listener`` says whom the dialler means:
the index of a node, and the address and port at which it listens. Somebody who takes over the port of a dead node can
therefore not pass a dialler on to another node and read along: that node has another name, and refuses.

Both sides are generators without any input and output of their own: each step gives what to send and how many bytes to
wait for. ``dial`` drives one over a blocking socket; ``accepting.Acceptor`` drives many at once.
"""

from __future__ import annotations

import hmac
import os
import struct
import time
from collections.abc import Callable, Generator
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

NONCE = 32
DIGEST = 32
TIMEOUT = 10.0  # seconds for the whole of a handshake, however its bytes trickle in
INDEX = struct.Struct("!I")
NO_NODE = 0xFFFFFFFF  # the index of a dialler that is no node: the user's own command

Step = tuple[bytes, int]  # what to send, and how many bytes to wait for
Handshake = Generator[Step, bytes, int]


class Protocol(StrEnum):
    """What a connection is for. Each has a key of its own."""

    LINKS = "links"
    CONTROL = "control"
    COPY = "copy"


class HandshakeError(Exception):
    """The other end does not know the secret, or is not the one that it should be."""


def listener_name(index: int, address: str, port: int) -> bytes:
    """How a listener is called in proofs."""
    return f"{index}@{address}:{port}".encode()


def _key(secret: bytes, protocol: Protocol) -> bytes:
    return hmac.digest(secret, f"pinnace {protocol}".encode(), "sha256")


def _proof(key: bytes, role: bytes, nonces: bytes, index: bytes, listener: bytes) -> bytes:
    return hmac.digest(key, role + nonces + index + listener, "sha256")


def dialling(secret: bytes, protocol: Protocol, index: int, listener: bytes) -> Handshake:
    """Prove to be the node ``index``, and see that the other end is the listener that we mean. Gives the index."""
    key, who, ours = _key(secret, protocol), INDEX.pack(index), os.urandom(NONCE)
    theirs = yield b"", NONCE
    nonces = theirs + ours
    proof = yield who + ours + _proof(key, b"dial", nonces, who, listener), DIGEST
    if not hmac.compare_digest(proof, _proof(key, b"listen", nonces, who, listener)):
        raise HandshakeError("the listener is not of this cluster")
    return index


def listening(secret: bytes, protocols: Callable[[int], Protocol | None], listener: bytes) -> Handshake:
    """Let the other end prove itself. Gives its index. ``protocols`` says what an index may ask for, if anything."""
    ours = os.urandom(NONCE)
    who = yield ours, INDEX.size
    (index,) = INDEX.unpack(who)
    protocol = protocols(index)
    if protocol is None:
        raise HandshakeError(f"nobody here talks to the index {index}")
    key = _key(secret, protocol)
    theirs = yield b"", NONCE
    nonces = ours + theirs
    proof = yield b"", DIGEST
    if not hmac.compare_digest(proof, _proof(key, b"dial", nonces, who, listener)):
        raise HandshakeError("the dialler is not of this cluster, or means another listener")
    yield _proof(key, b"listen", nonces, who, listener), 0
    return int(index)


def complete(sock: socket.socket, handshake: Handshake, limit: float = TIMEOUT) -> int:
    """Go through a handshake on a socket that may block, in no more than ``limit`` seconds."""
    deadline = time.monotonic() + limit
    try:
        send, wanted = next(handshake)
        while True:
            _limit(sock, deadline)
            sock.sendall(send)
            send, wanted = handshake.send(_exactly(sock, wanted, deadline))
    except StopIteration as done:
        sock.settimeout(None)
        index: int = done.value
        return index


def _exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        _limit(sock, deadline)
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise HandshakeError("the other end hung up")
        data += chunk
    return data


def _limit(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the handshake takes too long")
    sock.settimeout(left)


def dial(sock: socket.socket, secret: bytes, protocol: Protocol, index: int, listener: bytes) -> None:
    """The dialler's side on a socket that is connected."""
    complete(sock, dialling(secret, protocol, index, listener))
