"""What an application can observe of its sockets, as JSON. Read as text, and run in pods on either path.

python3 -c TEXT HOST PORT GROUP…

HOST has a responder (``responder.py``) at PORT. A GROUP is `connecting`, `accepting` (the responder dials back),
`refused` (nobody listens at HOST:PORT), `filtered` (nobody answers there) or `dead` (nobody has that address).
Addresses are given as what they are: own, the one that was asked for, or another one.
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

HOST, PORT, *GROUPS = sys.argv[1:]
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


# --- tools ----------------------------------------------------------------------------------------------------------


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
    """A time, roughly."""
    return next((text for limit, text in ((0.25, "at once"), (0.6, "half"), (1.5, "one")) if seconds < limit), "long")


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


# --- connecting -----------------------------------------------------------------------------------------------------


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
        return {
            "own": kind(own),
            "peer": kind(peer),
            "they see our address": there["peer"][0] == own[0],
            "and our port": there["peer"][1] == own[1],
        }


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
        length = ctypes.c_int32(-1)
        results.append([raw("getsockname", sock.fileno(), place, ctypes.byref(length))])
        results.append([raw("getsockname", sock.fileno(), ctypes.c_void_p(8), ctypes.byref(ctypes.c_uint32(16)))])
        return results


OPTIONS: dict[str, tuple[int, int, int]] = {
    name: (getattr(socket, level), getattr(socket, name, number), value)
    for name, level, number, value in (
        ("SO_KEEPALIVE", "SOL_SOCKET", 0, 1), ("SO_OOBINLINE", "SOL_SOCKET", 0, 1), ("SO_REUSEADDR", "SOL_SOCKET", 0, 1),
        ("SO_PRIORITY", "SOL_SOCKET", 0, 3), ("SO_RCVLOWAT", "SOL_SOCKET", 0, 2), ("SO_RCVBUF", "SOL_SOCKET", 0, 20000),
        ("SO_SNDBUF", "SOL_SOCKET", 0, 30000), ("SO_DONTROUTE", "SOL_SOCKET", 0, 0), ("SO_TIMESTAMP", "SOL_SOCKET", 29, 1),
        ("SO_BUSY_POLL", "SOL_SOCKET", 46, 0), ("SO_ZEROCOPY", "SOL_SOCKET", 60, 1),
        ("TCP_NODELAY", "IPPROTO_TCP", 0, 1), ("TCP_KEEPIDLE", "IPPROTO_TCP", 0, 77),
        ("TCP_KEEPINTVL", "IPPROTO_TCP", 0, 7), ("TCP_KEEPCNT", "IPPROTO_TCP", 0, 5), ("TCP_SYNCNT", "IPPROTO_TCP", 0, 4),
        ("TCP_LINGER2", "IPPROTO_TCP", 0, 9), ("TCP_USER_TIMEOUT", "IPPROTO_TCP", 18, 12345),
        ("TCP_QUICKACK", "IPPROTO_TCP", 12, 1), ("TCP_NOTSENT_LOWAT", "IPPROTO_TCP", 25, 4096),
        ("TCP_THIN_LINEAR_TIMEOUTS", "IPPROTO_TCP", 16, 1), ("TCP_WINDOW_CLAMP", "IPPROTO_TCP", 10, 30000),
        ("TCP_INQ", "IPPROTO_TCP", 36, 1), ("TCP_TX_DELAY", "IPPROTO_TCP", 37, 0),
        ("IP_TOS", "IPPROTO_IP", 0, 0x10), ("IP_TTL", "IPPROTO_IP", 0, 33), ("IP_RECVTTL", "IPPROTO_IP", 12, 1),
        ("IP_MTU_DISCOVER", "IPPROTO_IP", 10, 1), ("IP_RECVERR", "IPPROTO_IP", 11, 1), ("IP_MINTTL", "IPPROTO_IP", 21, 1),
        ("IP_FREEBIND", "IPPROTO_IP", 15, 1),
    )
}  # fmt: skip


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


@probe("connecting")
def options_set_before() -> Any:
    with socket.socket() as sock:
        set_options(sock)
        sock.connect(TARGET)
        return get_options(sock)


@probe("connecting")
def options_not_set() -> Any:
    sizes = {"SO_RCVBUF", "SO_SNDBUF", "TCP_WINDOW_CLAMP"}  # of the route
    with connected() as sock:
        sock.settimeout(None)
        return {name: value for name, value in get_options(sock).items() if name not in sizes}


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
        return [outcome(sock.send, b"x"), str(outcome(sock.recv, 1)), outcome(sock.shutdown, socket.SHUT_WR) is None]


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
            sock.sendall(b"who\n")
            there = json.loads(read_all(sock))
            results.append([
                kind(before), before == sock.getsockname(), kind(sock.getsockname()), there["peer"][1] == sock.getsockname()[1],
            ])  # fmt: skip
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
        sending = CALLERS.submit(lambda: [sock.sendall(block) for _ in range(size // len(block))])
        got, left = hashlib.sha256(), size
        while left and (data := sock.recv(1 << 16)):
            got.update(data)
            left -= len(data)
        sending.result()
    return [left, got.hexdigest() == hashlib.sha256(block * (size // len(block))).hexdigest()]


# --- connections that fail ------------------------------------------------------------------------------------------


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
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300_000))
        results += [raw("connect", sock.fileno(), sockaddr(*TARGET), 16), about(time.monotonic() - begin)]
        results += [raw("connect", sock.fileno(), sockaddr(*TARGET), 16)]
        sock.setblocking(False)
        results += [code_of(sock.connect_ex(TARGET)), kind(sock.getsockname()), outcome(sock.getpeername)]
    begin = time.monotonic()
    with socket.socket() as sock:
        sock.settimeout(0.4)
        results += [outcome(sock.connect, TARGET), about(time.monotonic() - begin)]
        results += [outcome(sock.send, b"x")]
    begin = time.monotonic()
    with socket.socket() as sock:
        sock.setblocking(False)
        results += [code_of(sock.connect_ex(TARGET)), about(time.monotonic() - begin)]
    return results


@probe("filtered")
def interrupted() -> Any:
    results: list[Any] = []
    with socket.socket() as sock, alarms(0.2):
        begin = time.monotonic()
        results += [raw("connect", sock.fileno(), sockaddr(*TARGET), 16), about(time.monotonic() - begin)]
        results.append(select.select([], [sock], [], 0.1)[1] == [])  # it is still being connected
        sock.setblocking(False)
        results.append(code_of(sock.connect_ex(TARGET)))
    with socket.socket() as sock, alarms(0.1, 0.1, restart=True):
        killer = threading.Timer(1.0, outcome, (sock.shutdown, socket.SHUT_RDWR))
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


# --- accepting ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(family: int = socket.AF_INET, backlog: int = 100, protocol: int = 0) -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_STREAM, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", 0))
        listener.listen(backlog)
        yield listener


def dial_back(listener: socket.socket | int, what: str = "hello") -> Future[Any]:
    """Have the responder connect to a listening socket. Gives what it has seen."""
    port = listener if isinstance(listener, int) else listener.getsockname()[1]
    return CALLERS.submit(ask, f"dial {OWN} {port} {what}")


def greet(sock: socket.socket, dialled: Future[Any]) -> bool:
    """Whether an accepted connection and the responder that made it understand each other."""
    sock.settimeout(LIMIT)
    heard = sock.recv(100)
    sock.sendall(heard.upper())
    _, said = dialled.result(LIMIT)
    return (heard, said) == (b"hello\n", "HELLO\n")


def until_readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], LIMIT)[0])


@probe("accepting")
def accepted() -> Any:
    with listening() as listener:
        dialled = dial_back(listener)
        sock, address = listener.accept()
        with sock:
            same = [list(address) == list(sock.getpeername()), kind(address), sock.getsockname()[0] == OWN]
            same.append(sock.getsockname()[1] == listener.getsockname()[1])
            greeted = greet(sock, dialled)
            return [greeted, *same, tuple(dialled.result()[0]) == address, flags(sock.fileno())]


@probe("accepting")
def accepted_for_both_families() -> Any:
    with listening(socket.AF_INET6) as listener:
        dialled = dial_back(listener)
        sock, address = listener.accept()
        with sock:
            domain = sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
            only = outcome(sock.getsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            hops = outcome(sock.setsockopt, socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 30)
            names = [len(address), kind(address), len(sock.getpeername()), kind(sock.getpeername()), len(sock.getsockname())]
            return [*names, domain, only, hops, greet(sock, dialled)]


@probe("accepting")
def raw_accept() -> Any:
    """accept(2) and accept4(2) with all flags, without an address, with too little room for it, and with a wrong one."""
    results: list[Any] = []
    with listening() as listener:
        number = listener.fileno()
        for more in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
            dialled = dial_back(listener)
            got = raw("accept4", number, None, None, more)
            assert isinstance(got, int), got
            results.append(flags(got))
            with socket.socket(fileno=got) as sock:
                sock.setblocking(True)
                results.append(greet(sock, dialled))
        for room in (0, 5, 16, 100):
            dialled = dial_back(listener)
            place, length = ctypes.create_string_buffer(b"\xee" * 128, 128), ctypes.c_uint32(room)
            got = raw("accept", number, place, ctypes.byref(length))
            assert isinstance(got, int), got
            with socket.socket(fileno=got) as sock:
                results.append([greet(sock, dialled), flags(got), length.value, place.raw[room] == 0xEE])
        results.append(raw("accept4", number, None, None, 1))
        with socket.socket() as sock:
            results.append(raw("accept", sock.fileno(), None, None))
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            results.append(raw("accept", sock.fileno(), None, None))
        results.append(raw("accept", 999, None, None))
        dialled = dial_back(listener, "wait")
        until_readable(listener)
        results.append(raw("accept", number, ctypes.c_void_p(8), ctypes.byref(ctypes.c_uint32(16))))
        results.append(dialled.result()[1:])
    return results


@probe("accepting")
def accepting_without_blocking() -> Any:
    with listening() as listener, select.epoll() as epoll:
        listener.setblocking(False)
        epoll.register(listener, select.EPOLLIN | select.EPOLLET)
        results: list[Any] = [outcome(listener.accept)]
        dialled = [dial_back(listener) for _ in range(5)]
        greeted: list[Any] = []
        while len(greeted) < 5:
            results.append(bool(epoll.poll(LIMIT)))
            while True:
                try:
                    sock, _ = listener.accept()
                except BlockingIOError:
                    break
                greeted.append(sock)
        for sock in greeted:
            sock.settimeout(LIMIT)
            sock.sendall(sock.recv(100).upper())
            sock.close()
        said = [one.result(LIMIT)[1] for one in dialled]
        return [set(map(str, results)) == {"EAGAIN", "True"}, said, [event for _, event in epoll.poll(0)]]


@probe("accepting")
def accepting_with_time_limit() -> Any:
    with listening() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 300_000))
        begin = time.monotonic()
        result = raw("accept", listener.fileno(), None, None)
        spent = time.monotonic() - begin
        dialled = dial_back(listener)
        sock, _ = listener.accept()
        with sock:
            inherited = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16).hex()
            return [result, 0.29 < spent < 0.5, inherited, greet(sock, dialled)]


@probe("accepting")
def accepting_with_short_time_limit() -> Any:
    with listening() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 10_000))
        begin = time.monotonic()
        results = {raw("accept", listener.fileno(), None, None) for _ in range(10)}
        return [list(results), time.monotonic() - begin < 0.5]


@probe("accepting")
def accepting_interrupted() -> Any:
    results: list[Any] = []
    with listening() as listener:
        with alarms(0.2):
            begin = time.monotonic()
            results += [raw("accept", listener.fileno(), None, None), about(time.monotonic() - begin)]
        with alarms(0.05, 0.05, restart=True):
            timer = threading.Timer(0.8, lambda: dials.append(dial_back(listener)))
            dials: list[Future[Any]] = []
            timer.start()
            got = raw("accept", listener.fileno(), None, None)
            assert isinstance(got, int), got
            timer.join()
            with socket.socket(fileno=got) as sock:
                results.append(greet(sock, dials[0]))
        # Under a storm of signals every connection is accepted, once.
        with alarms(0.001, 0.002):
            dials = [dial_back(listener) for _ in range(30)]
            greeted = 0
            for _ in range(30):
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(sock.recv(100).upper())
                    greeted += 1
            results += [greeted, {one.result(LIMIT)[1] for one in dials} == {"HELLO\n"}]
    return results


class InterruptedByHandlerError(Exception):
    """From a signal handler."""


@probe("accepting")
def listener_closed_and_opened_after_a_signal() -> Any:
    def stop(*_: object) -> None:
        raise InterruptedByHandlerError

    with listening() as listener:
        port = listener.getsockname()[1]
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            listener.accept()
        except InterruptedByHandlerError:
            pass
        listener.close()
        with socket.socket() as again:
            bound = [outcome(again.bind, ("", port)), outcome(again.listen, 5)]
        return [bound, dial_back(port).result(LIMIT)]


@probe("accepting")
def listener_shut_down_while_a_thread_accepts() -> Any:
    with listening() as listener:
        accepting = CALLERS.submit(raw, "accept", listener.fileno(), None, None)
        time.sleep(0.2)
        listener.shutdown(socket.SHUT_RDWR)
        return accepting.result(LIMIT)


@probe("accepting")
def listener_closed_with_a_queue() -> Any:
    with listening() as listener:
        dialled = [dial_back(listener, "wait") for _ in range(3)]
        until_readable(listener)
        time.sleep(0.3)
    return [one.result(LIMIT)[1:] for one in dialled]


@probe("accepting")
def accepted_late() -> Any:
    """After data, its end and a reset have come; and after seconds in the queue."""
    results: list[Any] = []
    with listening() as listener:
        for what in ("data", "reset", "wait"):
            dialled = dial_back(listener, what)
            until_readable(listener)
            time.sleep(1.5 if what == "wait" else 0.3)
            sock, address = listener.accept()
            with sock:
                sock.settimeout(LIMIT)
                data = outcome(read_all, sock) if what != "wait" else b""
                results.append([len(data), kind(address), kind(outcome(sock.getpeername))])
            results.append(dialled.result(LIMIT)[1:])
    return results


@probe("accepting")
def accepting_without_descriptors() -> Any:
    """With EMFILE a connection stays in the queue."""
    with listening() as listener:
        dialled = dial_back(listener)
        until_readable(listener)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            result = [raw("accept", listener.fileno(), None, None) for _ in range(3)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        readable = bool(select.select([listener], [], [], 1)[0])
        listener.settimeout(1)
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            return [result, readable, "lost"]
        with sock:
            return [result, readable, greet(sock, dialled)]


@probe("accepting")
def accepting_deferred() -> Any:
    results = []
    with listening() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
        for _ in range(4):
            begin = time.monotonic()
            dialled = dial_back(listener)
            sock, address = listener.accept()
            with sock:
                results.append([greet(sock, dialled), about(time.monotonic() - begin), kind(address)])
    return results


@probe("accepting")
def accepting_multipath() -> Any:
    """Go listens so, if the kernel knows it."""
    try:
        with listening(protocol=IPPROTO_MPTCP) as listener:
            dialled = dial_back(listener)
            sock, address = listener.accept()
            with sock:
                protocol = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL)
                return [greet(sock, dialled), kind(address), kind(sock.getpeername()), protocol]
    except OSError as error:
        return code_of(error.errno)


@probe("accepting")
def options_of_the_listener() -> Any:
    with listening() as listener:
        set_options(listener)
        dialled = dial_back(listener)
        sock, _ = listener.accept()
        with sock:
            found = get_options(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 10, 0))
            return [found, greet(sock, dialled)]


@probe("accepting")
def accepting_in_children() -> Any:
    with listening() as listener:
        children = []
        for _ in range(3):
            if not (child := os.fork()):
                with contextlib.suppress(OSError):
                    while True:
                        sock, _ = listener.accept()
                        with sock:
                            sock.sendall(sock.recv(100).upper())
                os._exit(0)
            children.append(child)
        dialled = [dial_back(listener) for _ in range(20)]
        said = {one.result(LIMIT)[1] for one in dialled}
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        port = listener.getsockname()[1]
        listener.close()
        with socket.socket() as again:  # nobody holds the port
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return [said == {"HELLO\n"}, outcome(again.bind, ("", port)), outcome(again.listen)]


@probe("accepting")
def listener_passed_to_a_child() -> Any:
    one, other = socket.socketpair()
    with one, other, listening() as listener:
        socket.send_fds(one, [b"x"], [listener.fileno()])
        dialled = dial_back(listener)

        def receive() -> Any:
            _, (number,), _, _ = socket.recv_fds(other, 1, 1)
            with socket.socket(fileno=number) as passed:
                sock, address = passed.accept()
                sock.sendall(sock.recv(100).upper())
                return kind(address)

        return [in_child(receive), dialled.result(LIMIT)[1]]


@probe("accepting")
def one_port_of_two_sockets() -> Any:
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        port = 0
        for _ in range(2):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(("", port))
            sock.listen()
            port = sock.getsockname()[1]
            sockets.append(sock)
        dialled = [dial_back(port) for _ in range(12)]
        for _ in range(12):
            [ready, *_], _, _ = select.select(sockets, [], [], LIMIT)
            accepted_one, _ = ready.accept()
            with accepted_one:
                accepted_one.sendall(accepted_one.recv(100).upper())
        return {one.result(LIMIT)[1] for one in dialled} == {"HELLO\n"}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


results: dict[str, Any] = {}
before = descriptors()
for group in GROUPS:
    for name, function in PROBES[group].items():
        begun = time.monotonic()
        try:
            results[name] = function()
        except Exception as error:  # noqa: BLE001 - it is a result, too
            results[name] = f"{type(error).__name__}: {error}"
        if os.environ.get("PROBE_TIMES"):
            sys.stderr.write(f"{name} {time.monotonic() - begun:.2f}\n")
        signal.setitimer(signal.ITIMER_REAL, 0)
results["descriptors"] = descriptors() - before
sys.stdout.write(json.dumps(results, default=str))
sys.stdout.flush()
os._exit(0)
