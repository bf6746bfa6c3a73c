"""The word to end, for a cluster's head: over its link port, with a proof of its own.

srun, asked by a signal, kills its tasks at once, and scancel would end a job that is not ours alone. Told this way, the
head deletes the pods as Kubernetes does, with their hooks and grace periods, before anything else ends.
"""

from __future__ import annotations

import socket

from pinnace.network.handshake import NO_NODE, HandshakeError, Protocol, dial, listener_name

STOP = b"stop"


def ask_to_stop(index: int, address: str, port: int, secret: bytes) -> bool:
    """Ask the head to end the cluster in order. Whether it heard."""
    try:
        with socket.create_connection((address, port), timeout=5) as sock:
            dial(sock, secret, Protocol.CONTROL, NO_NODE, listener_name(index, address, port))
            sock.sendall(STOP)
            sock.settimeout(5)
            return sock.recv(len(STOP)) == STOP
    except (OSError, HandshakeError):
        return False


def hear(sock: socket.socket) -> bool:
    """The other side, after the handshake: whether the word was said."""
    sock.settimeout(5)
    if sock.recv(len(STOP)) != STOP:
        return False
    sock.sendall(STOP)
    return True
