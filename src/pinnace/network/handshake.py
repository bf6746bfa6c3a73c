"""Who is at the other end of a link: mutual proof that both know the cluster's secret.

    listener ──► nonce
    dialler  ──► index, nonce, HMAC(secret, "dial" + both nonces + index)
    listener ──► HMAC(secret, "listen" + both nonces)

The secret lies in the cluster's directory, which only its user can read. Another user's process can reach the port, but
can neither join nor pass for a node; and it cannot inject into an established TCP connection without root.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

NONCE = 32
DIGEST = 32
TIMEOUT = 10.0  # seconds; a stranger who says nothing holds a thread no longer than this


class HandshakeError(Exception):
    """The other end does not know the secret."""


def _proof(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.digest(secret, role + b"".join(parts), "sha256")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise HandshakeError("the other end hung up")
        data += chunk
    return data


def dial(sock: socket.socket, secret: bytes, index: int) -> None:
    """Prove ourselves on a socket that we connected, as the node ``index``, and see that the listener is ours."""
    sock.settimeout(TIMEOUT)
    theirs = _exactly(sock, NONCE)
    ours = os.urandom(NONCE)
    who = struct.pack("!I", index)
    sock.sendall(who + ours + _proof(secret, b"dial", theirs, ours, who))
    if not hmac.compare_digest(_exactly(sock, DIGEST), _proof(secret, b"listen", theirs, ours)):
        raise HandshakeError("the listener is not of this cluster")
    sock.settimeout(None)


def answer(sock: socket.socket, secret: bytes) -> int:
    """Let the other end prove itself on a socket that we accepted. Gives its index."""
    sock.settimeout(TIMEOUT)
    ours = os.urandom(NONCE)
    sock.sendall(ours)
    who, theirs, proof = _exactly(sock, 4), _exactly(sock, NONCE), _exactly(sock, DIGEST)
    if not hmac.compare_digest(proof, _proof(secret, b"dial", ours, theirs, who)):
        raise HandshakeError("the dialler is not of this cluster")
    sock.sendall(_proof(secret, b"listen", ours, theirs))
    sock.settimeout(None)
    index: int = struct.unpack("!I", who)[0]
    return index
