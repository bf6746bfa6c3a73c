"""The request to end the cluster, sent to the head over its link port and authenticated with a key of its own.

srun, asked by a signal, kills its tasks at once, and scancel would end a job that is not ours alone. On this request
the head first deletes the pods as Kubernetes does, with their hooks and grace periods.
"""

from __future__ import annotations

import socket

from pinnace.network.handshake import NO_NODE, HandshakeError, Protocol, dial, listener_name

STOP = b"stop"  # the request, and its acknowledgement
CONTROL_TIMEOUT = 5.0  # seconds for connecting, and for each message


def ask_to_stop(index: int, address: str, port: int, secret: bytes) -> bool:
    """Ask the head to end the cluster in order. Whether it acknowledged."""
    try:
        with socket.create_connection((address, port), timeout=CONTROL_TIMEOUT) as sock:
            dial(sock, secret, Protocol.CONTROL, NO_NODE, listener_name(index, address, port))
            sock.sendall(STOP)
            sock.settimeout(CONTROL_TIMEOUT)
            return sock.recv(len(STOP)) == STOP
    except (OSError, HandshakeError):
        return False


def receive_stop(sock: socket.socket) -> bool:
    """The head's side, after the handshake: acknowledge the request. Whether it was one."""
    sock.settimeout(CONTROL_TIMEOUT)
    if sock.recv(len(STOP)) != STOP:
        return False
    sock.sendall(STOP)
    return True
