"""Probes of accept(2): the responder dials back."""

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from e2e.sockets.observing import (
    CALLERS,
    IPPROTO_MPTCP,
    LIMIT,
    OWN,
    about,
    alarms,
    ask,
    code_of,
    flags,
    in_child,
    kind,
    outcome,
    probe,
    raw,
    read_all,
)
from e2e.sockets.options import get_options, set_options


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
            names = [
                len(address),
                kind(address),
                len(sock.getpeername()),
                kind(sock.getpeername()),
                len(sock.getsockname()),
            ]
            return [*names, domain, only, hops, greet(sock, dialled)]


@probe("accepting")
def raw_accept() -> Any:
    """accept(2) and accept4(2) with all flags, without an address, with too little room for it, with a wrong one."""
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
            return [result, 0.29 < spent < 1, inherited, greet(sock, dialled)]


@probe("accepting")
def accepting_with_short_time_limit() -> Any:
    with listening() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 10_000))
        begin = time.monotonic()
        results = {raw("accept", listener.fileno(), None, None) for _ in range(10)}
        return [list(results), time.monotonic() - begin < 1]


@probe("accepting")
def accepting_interrupted() -> Any:
    results: list[Any] = []
    with listening() as listener:
        with alarms(0.1):
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
        with contextlib.suppress(InterruptedByHandlerError):
            listener.accept()
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
        return code_of(error.errno or 0)


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
