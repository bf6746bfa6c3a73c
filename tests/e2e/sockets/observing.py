"""What the probes have in common: whom they ask, how they call, and how they say what they have seen."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HOST, PORT = sys.argv[1:3]
TARGET = (socket.gethostbyname(HOST), int(PORT))
with socket.socket(type=socket.SOCK_DGRAM) as route:
    route.connect(TARGET)
    OWN: str = route.getsockname()[0]
LIBC = ctypes.CDLL(None, use_errno=True)
LIMIT = 10.0
AT_ONCE = struct.pack("ii", 1, 0)
IPPROTO_MPTCP, IP_BIND_ADDRESS_NO_PORT = 262, 24
CALLERS = ThreadPoolExecutor(8)
PROBES: dict[str, dict[str, Callable[[], Any]]] = {}
Probe = Callable[[], Any]


def probe(group: str) -> Callable[[Probe], Probe]:
    def add(function: Probe) -> Probe:
        PROBES.setdefault(group, {})[function.__name__] = function
        return function

    return add


def code_of(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it gives, or the error's name."""
    try:
        return function(*arguments)
    except OSError as error:
        return code_of(error.errno) if error.errno else type(error).__name__


def raw(name: str, *arguments: Any) -> str | int:
    """A call of the C library, which Python would repeat after a signal."""
    result = getattr(LIBC, name)(*arguments)
    return code_of(ctypes.get_errno()) if result < 0 else result


def sockaddr(host: str, port: int) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(host))


def kind(address: Any) -> Any:
    """What an address is to this pod."""
    if not isinstance(address, tuple | list):
        return address
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    mapped = "mapped " if str(address[0]).startswith("::ffff:") else ""
    who = {OWN: "own", TARGET[0]: "asked", "0.0.0.0": "any", "::": "any6"}.get(host, "another")  # noqa: S104
    return f"{mapped}{who}:{'asked' if port == TARGET[1] else 'some' if port else 0}"


def about(seconds: float) -> str:
    """A time, roughly: a busy machine may stop a process for some tenths of a second."""
    return "at once" if seconds < 0.5 else "one" if seconds < 2 else "long"


@contextlib.contextmanager
def connected(command: str = "echo", family: int = socket.AF_INET) -> Iterator[socket.socket]:
    with socket.socket(family) as sock:
        sock.settimeout(LIMIT)
        sock.connect(mapped(TARGET) if family == socket.AF_INET6 else TARGET)
        sock.sendall(f"{command}\n".encode())
        yield sock


def mapped(address: tuple[str, int]) -> tuple[str, int]:
    return f"::ffff:{address[0]}", address[1]


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(1 << 16):
        data += more
    return data


def ask(command: str) -> Any:
    with connected(command) as sock:
        return json.loads(read_all(sock) or "null")


def echoes(sock: socket.socket, text: bytes = b"some text") -> bool:
    """Whether the responder, who was asked to echo, does."""
    sock.sendall(text)
    got = b""
    while len(got) < len(text) and (more := sock.recv(1 << 16)):
        got += more
    return got == text


def flags(number: int) -> list[bool]:
    return [
        bool(fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC),
        bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_NONBLOCK),
    ]


@contextlib.contextmanager
def alarms(first: float, interval: float = 0.0, *, restart: bool = False) -> Iterator[list[int]]:
    """Signals, whose handler is set with or without SA_RESTART."""
    caught: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: caught.append(number))
    signal.siginterrupt(signal.SIGALRM, not restart)
    signal.setitimer(signal.ITIMER_REAL, first, interval)
    try:
        yield caught
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def in_child(function: Callable[[], Any]) -> Any:
    """What a forked child gives."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writing, json.dumps(outcome(function)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:  # noqa: PTH123 - a descriptor
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said or "null")
