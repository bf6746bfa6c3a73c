"""Probes of connect(2), and of what becomes of a connection."""

import ctypes
import hashlib
import json
import os
import select
import socket
import struct
import time
from typing import Any

from e2e.sockets.observing import (
    AT_ONCE,
    CALLERS,
    IP_BIND_ADDRESS_NO_PORT,
    LIMIT,
    OWN,
    TARGET,
    alarms,
    ask,
    code_of,
    connected,
    echoes,
    flags,
    in_child,
    kind,
    mapped,
    outcome,
    probe,
    raw,
    read_all,
    sockaddr,
)
from e2e.sockets.options import get_options, set_options


@probe("connecting")
def blocking() -> Any:
    with connected() as sock:
        sock.settimeout(None)
        return [echoes(sock), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]


@probe("connecting")
def kinds_of_socket() -> Any:
    names = ("SO_DOMAIN", "SO_TYPE", "SO_PROTOCOL", "SO_ACCEPTCONN")
    with connected() as sock:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return [state, *(sock.getsockopt(socket.SOL_SOCKET, getattr(socket, name)) for name in names)]


@probe("connecting")
def nonblocking() -> Any:
    with socket.socket() as sock:
        sock.setblocking(False)
        first = code_of(sock.connect_ex(TARGET))
        poll = select.poll()
        poll.register(sock, select.POLLOUT | select.POLLIN)
        events = [event for _, event in poll.poll(LIMIT * 1000)]
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        again = code_of(sock.connect_ex(TARGET))
        return [first, events, error, again, outcome(sock.recv, 1), flags(sock.fileno())]


@probe("connecting")
def addresses() -> Any:
    with connected("who") as sock:
        own, peer = sock.getsockname(), sock.getpeername()
        there = json.loads(read_all(sock))
        return {"own": kind(own), "peer": kind(peer), "they see our address": there["peer"][0] == own[0]}


@probe("connecting")
def port_that_they_see() -> Any:
    with connected("who") as sock:
        return json.loads(read_all(sock))["peer"][1] == sock.getsockname()[1]


@probe("connecting")
def addresses_of_a_socket_for_both_families() -> Any:
    with connected("who", socket.AF_INET6) as sock:
        own, peer = sock.getsockname(), sock.getpeername()
        there = json.loads(read_all(sock))
        return [len(own), kind(own), len(peer), kind(peer), there["peer"][0] == own[0].removeprefix("::ffff:")]


@probe("connecting")
def truncated_addresses() -> Any:
    with connected() as sock:
        results = []
        for room in (0, 4, 100):
            place, length = ctypes.create_string_buffer(b"\xee" * 128, 128), ctypes.c_uint32(room)
            result = raw("getpeername", sock.fileno(), place, ctypes.byref(length))
            results.append([result, length.value, place.raw[room] == 0xEE])
        negative = ctypes.c_int32(-1)
        results.append([raw("getsockname", sock.fileno(), place, ctypes.byref(negative))])
        results.append([raw("getsockname", sock.fileno(), ctypes.c_void_p(8), ctypes.byref(ctypes.c_uint32(16)))])
        return results


@probe("connecting")
def options_set_before() -> Any:
    with socket.socket() as sock:
        set_options(sock)
        sock.connect(TARGET)
        return get_options(sock)


@probe("connecting")
def options_not_set() -> Any:
    of_the_route = {"SO_RCVBUF", "SO_SNDBUF", "TCP_WINDOW_CLAMP"}
    ours = {"SO_REUSEADDR"}  # see docs/limits.md
    with connected() as sock:
        sock.settimeout(None)
        return {name: value for name, value in get_options(sock).items() if name not in of_the_route | ours}


@probe("connecting")
def flags_of_the_descriptor() -> Any:
    results = []
    for inheritable in (False, True):
        for is_blocking in (False, True):
            with socket.socket() as sock:
                sock.set_inheritable(inheritable)
                sock.setblocking(is_blocking)
                sock.connect_ex(TARGET)
                results.append(flags(sock.fileno()))
    return results


@probe("connecting")
def half_close_by_us() -> Any:
    with connected("digest") as sock:
        sock.sendall(b"x" * 300_000)
        sock.shutdown(socket.SHUT_WR)
        wrote = outcome(sock.send, b"more")
        size, digest, end = json.loads(read_all(sock))
        return [wrote, size, digest == hashlib.sha256(b"x" * 300_000).hexdigest(), end]


@probe("connecting")
def half_close_by_them() -> Any:
    name = f"{OWN}-{time.monotonic()}"
    with connected(f"finish {name}") as sock:
        said = read_all(sock).decode()
        sock.sendall(b"y" * 100_000)
        sock.shutdown(socket.SHUT_WR)
    return [said, ask(f"seen {name}")[::2]]


@probe("connecting")
def reset_by_them() -> Any:
    with connected("reset") as sock:
        time.sleep(0.4)
        first = outcome(sock.recv, 100)
        poll = select.poll()
        poll.register(sock, select.POLLOUT | select.POLLIN)
        return [
            str(first), outcome(sock.recv, 100), outcome(sock.send, b"x"), [event for _, event in poll.poll(0)],
            kind(outcome(sock.getsockname)), outcome(sock.getpeername),
        ]  # fmt: skip


@probe("connecting")
def reset_by_us() -> Any:
    name = f"{OWN}-{time.monotonic()}"
    with connected(f"note {name}") as sock:
        sock.sendall(b"z")
        time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    return ask(f"seen {name}")[::2]


@probe("connecting")
def closed_with_unread_data() -> Any:
    name = f"{OWN}-{time.monotonic()}"
    with connected(f"finish {name}"):
        time.sleep(0.2)
    return ask(f"seen {name}")[::2]


@probe("connecting")
def shutdown_both_ways() -> Any:
    with connected() as sock:
        sock.shutdown(socket.SHUT_RDWR)
        return [outcome(sock.send, b"x"), str(outcome(sock.recv, 1))]


@probe("connecting")
def connected_twice() -> Any:
    with connected() as sock:
        sock.settimeout(None)
        return [code_of(sock.connect_ex(TARGET)), code_of(sock.connect_ex(("127.0.0.1", 1))), echoes(sock)]


@probe("connecting")
def disconnected_and_connected_again() -> Any:
    with socket.socket() as sock:
        sock.connect(TARGET)
        results = [raw("connect", sock.fileno(), struct.pack("=H14x", socket.AF_UNSPEC), 16)]
        results += [outcome(sock.getpeername), kind(sock.getsockname()), outcome(sock.send, b"x")]
        results.append(code_of(sock.connect_ex(TARGET)))
        sock.sendall(b"echo\n")
        return [*results, echoes(sock)]


@probe("connecting")
def after_disconnecting_nobody_is_reached_on_the_host() -> Any:
    """Port 111… of the loopback interface: a pod has nothing there, whatever the host has."""
    results = []
    with socket.socket() as listener:  # of the pod's own
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.socket() as sock:
            sock.connect(TARGET)
            raw("connect", sock.fileno(), struct.pack("=H14x", socket.AF_UNSPEC), 16)
            results.append(code_of(sock.connect_ex(listener.getsockname())))
    return results


@probe("connecting")
def dup_before() -> Any:
    with socket.socket() as sock, sock.dup() as other:
        sock.connect(TARGET)
        other.sendall(b"echo\n")
        same = os.fstat(sock.fileno()).st_ino == os.fstat(other.fileno()).st_ino
        return [echoes(other), same, kind(other.getpeername())]


@probe("connecting")
def dup_before_and_the_first_closed() -> Any:
    with select.epoll() as epoll:
        first = socket.socket()
        first.setblocking(False)
        epoll.register(first, select.EPOLLOUT | select.EPOLLET)
        epoll.poll(0)
        with first.dup() as sock:
            first.close()
            sock.connect_ex(TARGET)
            return [event for _, event in epoll.poll(1)]


@probe("connecting")
def dup2_after() -> Any:
    with connected() as sock, socket.socket() as other:
        os.dup2(sock.fileno(), other.fileno())
        sock.close()
        other.settimeout(LIMIT)
        return [echoes(other), kind(other.getpeername())]


@probe("connecting")
def epoll_before() -> Any:
    with socket.socket() as sock, select.epoll() as epoll:
        sock.setblocking(False)
        epoll.register(sock, select.EPOLLOUT | select.EPOLLIN | select.EPOLLET)
        before = [event for _, event in epoll.poll(0)]
        sock.connect_ex(TARGET)
        after = [event for _, event in epoll.poll(LIMIT)]
        sock.sendall(b"echo\nhello")
        while not (more := [event for _, event in epoll.poll(LIMIT)])[0] & select.EPOLLIN:
            pass
        return [before, after, more, sock.recv(100) == b"hello"]


@probe("connecting")
def epoll_after() -> Any:
    with socket.socket() as sock, select.epoll() as epoll:
        sock.setblocking(False)
        sock.connect_ex(TARGET)
        epoll.register(sock, select.EPOLLOUT | select.EPOLLET)
        return [event for _, event in epoll.poll(LIMIT)]


@probe("connecting")
def fork_after() -> Any:
    with connected() as sock:
        return [in_child(lambda: echoes(sock)), echoes(sock), in_child(lambda: kind(sock.getpeername()))]


@probe("connecting")
def fork_before_and_the_child_connects() -> Any:
    with socket.socket() as sock:
        child = in_child(lambda: sock.connect(TARGET))
        sock.settimeout(1)
        return [child, kind(outcome(sock.getpeername)), outcome(sock.sendall, b"echo\n"), outcome(echoes, sock)]


@probe("connecting")
def passed_after() -> Any:
    one, other = socket.socketpair()
    with one, other, connected() as sock:
        socket.send_fds(one, [b"x"], [sock.fileno()])
        sock.close()

        def receive() -> bool:
            _, (number,), _, _ = socket.recv_fds(other, 1, 1)
            with socket.socket(fileno=number) as received:
                received.settimeout(LIMIT)
                return echoes(received)

        return in_child(receive)


@probe("connecting")
def bound_before() -> Any:
    results = []
    for no_port in (0, 1):
        with socket.socket() as sock:
            sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, no_port)
            sock.bind((OWN, 0))
            before = sock.getsockname()
            sock.connect(TARGET)
            results.append([kind(before), before == sock.getsockname(), kind(sock.getsockname())])
    return results


@probe("connecting")
def wrong_arguments() -> Any:
    with socket.socket() as sock, socket.socket(socket.AF_INET6) as six, open("/dev/null") as null:  # noqa: PTH123
        good = sockaddr(*TARGET)
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        return [
            raw("connect", sock.fileno(), good, 8),
            raw("connect", sock.fileno(), good + bytes(400), 200),
            raw("connect", sock.fileno(), ctypes.c_void_p(8), 16),
            raw("connect", 999, good, 16),
            raw("connect", null.fileno(), good, 16),
            raw("connect", six.fileno(), good, 16),
            code_of(six.connect_ex(mapped(TARGET))),
            raw("connect", sock.fileno(), struct.pack("=H26x", socket.AF_INET6), 28),
            code_of(sock.connect_ex(("127.0.0.1", 1))),
            code_of(sock.connect_ex(("255.255.255.255", 80))),
            code_of(sock.connect_ex(("224.0.0.1", 80))),
        ]


@probe("connecting")
def other_kinds_of_socket() -> Any:
    with socket.socket(type=socket.SOCK_DGRAM) as datagram, socket.socket(socket.AF_UNIX) as unix:
        datagram.connect(TARGET)
        results = [kind(datagram.getpeername()), kind(datagram.getsockname())]
        results.append(code_of(unix.connect_ex("/nowhere")))
        unix.bind("\0probe-" + str(os.getpid()))
        unix.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(unix.getsockname())
            accepted, _ = unix.accept()
            accepted.close()
        return results


@probe("connecting")
def signals_while_connecting() -> Any:
    """A timer that fires all the time, and an application that repeats what was interrupted, as Python does."""
    wrong: list[Any] = []
    with alarms(0.001, 0.0007) as caught:
        for number in range(60):
            with socket.socket() as sock:
                sock.settimeout(None)
                try:
                    sock.connect(TARGET)
                    sock.sendall(b"echo\n")
                    if not echoes(sock):
                        wrong.append("no echo")
                except OSError as error:
                    wrong.append([number, code_of(error.errno or 0)])
    return [wrong[:3], len(caught) > 10]


@probe("connecting")
def signals_that_restart_calls() -> Any:
    with alarms(0.001, 0.0004, restart=True):
        results = set()
        for _ in range(30):
            with socket.socket() as sock:
                results.add(raw("connect", sock.fileno(), sockaddr(*TARGET), 16))
    return sorted(map(str, results))


@probe("connecting")
def signals_and_no_blocking() -> Any:
    """connect(2) of a socket that does not block is never interrupted."""
    results = set()
    with alarms(0.001, 0.0005):
        for _ in range(60):
            with socket.socket() as sock:
                sock.setblocking(False)
                results.add(raw("connect", sock.fileno(), sockaddr(*TARGET), 16))
    return sorted(map(str, results))


@probe("connecting")
def threads() -> Any:
    def one(number: int) -> bool:
        with connected() as sock:
            return echoes(sock, str(number).encode() * 1000)

    return all(CALLERS.map(one, range(40)))


@probe("connecting")
def much_data_both_ways() -> Any:
    size, block = 4 << 20, os.urandom(1 << 16)
    with connected() as sock:
        sending = CALLERS.submit(sock.sendall, block * (size // len(block)))
        got, left = hashlib.sha256(), size
        while left and (data := sock.recv(1 << 16)):
            got.update(data)
            left -= len(data)
        sending.result()
    return [left, got.hexdigest() == hashlib.sha256(block * (size // len(block))).hexdigest()]
