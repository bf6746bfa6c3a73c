"""Probes of connections that are refused, filtered, or lead to nobody."""

import select
import socket
import struct
import threading
import time
from typing import Any

from e2e.sockets.observing import (
    LIMIT,
    TARGET,
    about,
    alarms,
    code_of,
    kind,
    mapped,
    outcome,
    probe,
    raw,
    sockaddr,
)


@probe("refused")
def refused() -> Any:
    results: list[Any] = []
    with socket.socket() as sock:
        results += [code_of(sock.connect_ex(TARGET)) for _ in range(2)]
        results += [outcome(sock.getpeername), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]
    with socket.socket() as sock:
        sock.setblocking(False)
        results.append(code_of(sock.connect_ex(TARGET)))
        poll = select.poll()
        poll.register(sock, select.POLLOUT | select.POLLIN)
        results.append([event for _, event in poll.poll(LIMIT * 1000)])
        results.append(code_of(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
        results.append(kind(sock.getsockname()))
        results.append(code_of(sock.connect_ex(TARGET)))
        poll.poll(LIMIT * 1000)
        results.append(outcome(sock.send, b"x"))
    with socket.socket(socket.AF_INET6) as sock:
        results.append(code_of(sock.connect_ex(mapped(TARGET))))
    return results


@probe("refused")
def refused_and_then_local() -> Any:
    """The same socket may be used for another connection, here for one within the pod."""
    with socket.socket() as listener, socket.socket() as sock:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sock.setblocking(False)
        sock.connect_ex(TARGET)
        select.select([], [sock], [], LIMIT)
        error = code_of(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        sock.setblocking(True)
        return [error, code_of(sock.connect_ex(listener.getsockname()))]


@probe("filtered")
def time_limits() -> Any:
    begin = time.monotonic()
    results: list[Any] = []
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
        results += [raw("connect", sock.fileno(), sockaddr(*TARGET), 16), about(time.monotonic() - begin)]
        results += [raw("connect", sock.fileno(), sockaddr(*TARGET), 16)]
        sock.setblocking(False)
        results += [code_of(sock.connect_ex(TARGET)), kind(sock.getsockname()), outcome(sock.getpeername)]
    begin = time.monotonic()
    with socket.socket() as sock:
        sock.settimeout(1)
        results += [outcome(sock.connect, TARGET), about(time.monotonic() - begin)]
        results += [outcome(sock.send, b"x")]
    begin = time.monotonic()
    with socket.socket() as sock:
        sock.setblocking(False)
        results += [code_of(sock.connect_ex(TARGET)), about(time.monotonic() - begin)]
    return results


def shut_down(sock: socket.socket, *pauses: float) -> None:
    """End a connect of another thread. In the moment in which a signal has it begin again, that has no effect."""
    for pause in pauses:
        time.sleep(pause)
        outcome(sock.shutdown, socket.SHUT_RDWR)


@probe("filtered")
def interrupted() -> Any:
    results: list[Any] = []
    with socket.socket() as sock, alarms(0.1):
        begin = time.monotonic()
        results += [raw("connect", sock.fileno(), sockaddr(*TARGET), 16), about(time.monotonic() - begin)]
        results.append(select.select([], [sock], [], 0.1)[1] == [])  # it is still being connected
        sock.setblocking(False)
        results.append(code_of(sock.connect_ex(TARGET)))
    with socket.socket() as sock, alarms(0.1, 0.1, restart=True):
        killer = threading.Thread(target=shut_down, args=(sock, 1.05, 0.15, 0.15))
        killer.start()
        begin = time.monotonic()
        results += [raw("connect", sock.fileno(), sockaddr(*TARGET), 16), about(time.monotonic() - begin)]
        killer.join()
    return results


@probe("dead")
def dead() -> Any:
    with socket.socket() as sock:
        sock.settimeout(6)
        begin = time.monotonic()
        return [outcome(sock.connect, TARGET), time.monotonic() - begin < 7]
