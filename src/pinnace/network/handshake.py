"""Mutual authentication of two ends of a connection: each proves that it knows the cluster's secret.

    listener ──► nonce
    dialler  ──► index, nonce, HMAC(key, "dial" + both nonces + index + listener)
    listener ──► HMAC(key, "listen" + both nonces + index + listener)

The secret lies in the cluster's directory, which only its user can read. The key is derived from it and from the name
of the protocol, so a proof for one protocol is not valid in another. ``listener`` names the listener that the dialler
wants: the index of a node, and the address and port at which it listens. An attacker who takes over the port of a dead
node can therefore not relay a dialler to another node and read along: that node has another name, and refuses.

Both sides are generators that do no I/O: each step yields what to send and how many bytes to wait for. ``dial`` runs
one over a blocking socket; ``accepting.Acceptor`` runs many at once.
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

NONCE_SIZE = 32
DIGEST_SIZE = 32
HANDSHAKE_TIMEOUT = 10.0  # seconds for the whole handshake, not for each byte
INDEX = struct.Struct("!I")
NO_NODE = 0xFFFFFFFF  # the index of a dialler that is not a node: the user's own command

Step = tuple[bytes, int]  # what to send, and how many bytes to wait for
Handshake = Generator[Step, bytes, int]


class Protocol(StrEnum):
    """What a connection is for. Each protocol has a key of its own."""

    LINKS = "links"
    SOCKETS = "sockets"
    CONTROL = "control"
    COPY = "copy"
    TUNNEL = "tunnel"


class HandshakeError(Exception):
    """The other end does not know the secret, or is not the one that was dialled."""


def listener_name(index: int, address: str, port: int) -> bytes:
    """The name of a listener in proofs."""
    return f"{index}@{address}:{port}".encode()


def derive_key(secret: bytes, protocol: Protocol) -> bytes:
    return hmac.digest(secret, f"pinnace {protocol}".encode(), "sha256")


def _proof(key: bytes, role: bytes, nonces: bytes, index: bytes, listener: bytes) -> bytes:
    return hmac.digest(key, role + nonces + index + listener, "sha256")


def dialling(secret: bytes, protocol: Protocol, index: int, listener: bytes) -> Handshake:
    """The dialler's side: prove to be node ``index`` and verify the listener. Returns the index."""
    key, dialler, ours = derive_key(secret, protocol), INDEX.pack(index), os.urandom(NONCE_SIZE)
    theirs = yield b"", NONCE_SIZE
    nonces = theirs + ours
    proof = yield dialler + ours + _proof(key, b"dial", nonces, dialler, listener), DIGEST_SIZE
    if not hmac.compare_digest(proof, _proof(key, b"listen", nonces, dialler, listener)):
        raise HandshakeError("the listener is not of this cluster")
    return index


def listening(secret: bytes, protocols: Callable[[int], Protocol | None], listener: bytes) -> Handshake:
    """The listener's side: verify the dialler. Returns its index. ``protocols`` maps an index to what it may use."""
    ours = os.urandom(NONCE_SIZE)
    dialler = yield ours, INDEX.size
    (index,) = INDEX.unpack(dialler)
    protocol = protocols(index)
    if protocol is None:
        raise HandshakeError(f"nobody here talks to the index {index}")
    key = derive_key(secret, protocol)
    theirs = yield b"", NONCE_SIZE
    nonces = ours + theirs
    proof = yield b"", DIGEST_SIZE
    if not hmac.compare_digest(proof, _proof(key, b"dial", nonces, dialler, listener)):
        raise HandshakeError("the dialler is not of this cluster, or means another listener")
    yield _proof(key, b"listen", nonces, dialler, listener), 0
    return int(index)


def complete(sock: socket.socket, handshake: Handshake, timeout: float = HANDSHAKE_TIMEOUT) -> int:
    """Run a handshake over a blocking socket, in no more than ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    try:
        send, wanted = next(handshake)
        while True:
            _set_timeout(sock, deadline)
            sock.sendall(send)
            send, wanted = handshake.send(_recv_exactly(sock, wanted, deadline))
    except StopIteration as done:
        sock.settimeout(None)
        index: int = done.value
        return index


def _recv_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        _set_timeout(sock, deadline)
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise HandshakeError("the other end hung up")
        data += chunk
    return data


def _set_timeout(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the handshake takes too long")
    sock.settimeout(left)


def dial(sock: socket.socket, secret: bytes, protocol: Protocol, index: int, listener: bytes) -> None:
    """Run the dialler's side over a connected socket."""
    complete(sock, dialling(secret, protocol, index, listener))
