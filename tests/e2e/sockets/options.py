"""Options of sockets, set and read back."""

import contextlib
import socket
import struct
from typing import Any

from e2e.sockets.observing import outcome

OF_SOCKET = {
    "SO_KEEPALIVE": 1, "SO_OOBINLINE": 1, "SO_REUSEADDR": 1, "SO_PRIORITY": 3, "SO_RCVLOWAT": 2, "SO_RCVBUF": 20000,
    "SO_SNDBUF": 30000, "SO_TIMESTAMP": 1, "SO_ZEROCOPY": 1,
}  # fmt: skip
OF_TCP = {
    "TCP_NODELAY": 1, "TCP_KEEPIDLE": 77, "TCP_KEEPINTVL": 7, "TCP_KEEPCNT": 5, "TCP_SYNCNT": 4, "TCP_LINGER2": 9,
    "TCP_USER_TIMEOUT": 12345, "TCP_NOTSENT_LOWAT": 4096, "TCP_THIN_LINEAR_TIMEOUTS": 1, "TCP_WINDOW_CLAMP": 30000,
    "TCP_INQ": 1,
}  # fmt: skip
OF_IP = {
    "IP_TOS": 0x10, "IP_TTL": 33, "IP_RECVTTL": 1, "IP_MTU_DISCOVER": 1, "IP_RECVERR": 1, "IP_MINTTL": 1,
    "IP_FREEBIND": 1,
}  # fmt: skip
NUMBERS = {  # which Python has no names for
    "SO_TIMESTAMP": 29, "SO_ZEROCOPY": 60, "TCP_USER_TIMEOUT": 18, "TCP_NOTSENT_LOWAT": 25, "TCP_WINDOW_CLAMP": 10,
    "TCP_THIN_LINEAR_TIMEOUTS": 16, "TCP_INQ": 36, "IP_MTU_DISCOVER": 10, "IP_RECVERR": 11, "IP_RECVTTL": 12,
    "IP_FREEBIND": 15, "IP_MINTTL": 21,
}  # fmt: skip
LEVELS = ((socket.SOL_SOCKET, OF_SOCKET), (socket.IPPROTO_TCP, OF_TCP), (socket.IPPROTO_IP, OF_IP))
OPTIONS = {
    name: (level, NUMBERS[name] if name in NUMBERS else getattr(socket, name), value)
    for level, options in LEVELS
    for name, value in options.items()
}


def set_options(sock: socket.socket) -> None:
    for level, name, value in OPTIONS.values():
        with contextlib.suppress(OSError):
            sock.setsockopt(level, name, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3, 250000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 4, 0))


def get_options(sock: socket.socket) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: outcome(sock.getsockopt, level, number) for name, (level, number, _) in OPTIONS.items()
    }
    for name, size in (("SO_LINGER", 8), ("SO_RCVTIMEO", 16), ("SO_SNDTIMEO", 16)):
        found[name] = sock.getsockopt(socket.SOL_SOCKET, getattr(socket, name), size).hex()
    return found
