"""Relays TCP connections between the fabric and the outside in the kernel, with splice(2).

Outward, nftables redirect every connection to the outside to a listener of ours, which asks the kernel for the original
destination. Inward, a listener on the host leads to a fixed address in the fabric. Either way two sockets are joined by
two pipes. Python handles the events of the sockets, never the bytes.

Strangers can connect to the listeners on the host. An idle connection costs two descriptors; it borrows a pipe only
while there are bytes to move. Every listener has a quota (see ``quota``), and no failure of one connection ends the
loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import select
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pinnace.network.accepting import ACCEPT_BATCH, EXHAUSTED_ERRNOS, EXHAUSTED_PAUSE, linger, reset
from pinnace.network.tls import MAX_HELLO_SIZE, NotTlsError, server_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.quota import Quota

    Address = tuple[str, int]
    Target = Address | str  # the latter is the path of a UNIX socket
    ChooseTarget = Callable[[socket.socket], tuple[socket.socket, Target]]  # a socket, and where to connect it
    PairQuota = Quota["Pair"]
    PipeEnds = tuple[int, int]

SO_ORIGINAL_DST = 80
SPLICE_SIZE = 1 << 20  # bytes of one splice(2)
PIPE_SIZE = 1 << 20  # bytes
F_SETPIPE_SZ = 1031
MAX_ROUNDS = 8  # of up to PIPE_SIZE bytes that a connection moves in a row while others wait
MAX_SPARE_PIPES = 64  # kept open for reuse
MAX_HELLOS = 512  # connections whose ClientHello is incomplete
HELLO_TIMEOUT = 10.0  # seconds for a ClientHello
MAX_IDLE_READS = 8  # without new bytes: after a direction-close the kernel reports a socket as readable for ever
BACKLOG = 4096  # of listen(2); net.core.somaxconn may be less


def original_destination(sock: socket.socket) -> Address:
    """The destination of a connection before netfilter redirected it to us."""
    raw = sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port


class Pipes:
    """A pool of pipes."""

    def __init__(self) -> None:
        self._spare: list[PipeEnds] = []

    def take(self) -> PipeEnds:
        if self._spare:
            return self._spare.pop()
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the user's pipe limit may be reached; the default size works too
            fcntl.fcntl(write_end, F_SETPIPE_SZ, PIPE_SIZE)
        return read_end, write_end

    def give_back(self, pipe: PipeEnds, *, empty: bool) -> None:
        if empty and len(self._spare) < MAX_SPARE_PIPES:
            self._spare.append(pipe)
        else:
            for end in pipe:
                os.close(end)


@dataclass(eq=False, kw_only=True)
class Direction:
    """One direction of a connection: from ``source`` through a pipe to ``sink``."""

    source: socket.socket
    sink: socket.socket
    pipes: Pipes
    pipe: PipeEnds | None = None
    held: int = 0  # bytes in the pipe
    finished: bool = False  # the source is at its end
    closed: bool = False  # and the sink has been shut down for writing

    def pump(self) -> bool:
        """Move bytes without blocking, up to MAX_ROUNDS. Whether any were moved."""
        any_moved = False
        for _ in range(0 if self.closed else MAX_ROUNDS):
            moved = 0
            if not self.finished:
                moved = self._fill()
            if self.held:
                moved += self._drain()
            if self.finished and not self.held:
                self.closed = True
                with contextlib.suppress(OSError):
                    self.sink.shutdown(socket.SHUT_WR)
            any_moved |= moved > 0
            if not moved or self.closed:
                break
        if not self.held:
            self.release()
        return any_moved

    def copy(self) -> bool:
        """Read with recv(2), which continues after urgent data; splice(2) stops before it for good.

        Whether there was anything to read, or the end.
        """
        if self.finished or self.held:
            return False
        self.pipe = self.pipe or self.pipes.take()
        try:
            self.held = os.write(self.pipe[1], self.source.recv(select.PIPE_BUF))  # PIPE_BUF bytes are written at once
        except BlockingIOError:
            self.release()
            return False
        self.finished = not self.held
        return True

    def release(self) -> None:
        """Return the pipe to the pool."""
        if self.pipe:
            self.pipes.give_back(self.pipe, empty=not self.held)
            self.pipe = None

    def _fill(self) -> int:
        if self.pipe is None:
            self.pipe = self.pipes.take()
        try:
            count = os.splice(self.source.fileno(), self.pipe[1], SPLICE_SIZE, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return 0
        # splice(2) returns 0 before urgent data too, if the end has been received after it.
        self.finished = count == 0 and not self.source.recv(1, socket.MSG_PEEK)
        self.held += count
        return count

    def _drain(self) -> int:
        assert self.pipe is not None  # noqa: S101 - the pipe holds bytes
        try:
            count = os.splice(self.pipe[0], self.sink.fileno(), self.held, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return 0
        self.held -= count
        return count


class Pair:
    """Two joined sockets. ``outer`` may still be connecting."""

    def __init__(
        self, inner: socket.socket, outer: socket.socket, pipes: Pipes, quota: PairQuota, source: str = ""
    ) -> None:
        self.sockets = (inner, outer)
        self.quota = quota
        self.source = source
        self.connecting = True
        self.ended = False
        ends = ((inner, outer), (outer, inner))
        self.directions = [Direction(source=source, sink=sink, pipes=pipes) for source, sink in ends]

    def interest(self, sock: socket.socket) -> int:
        """The events to wait for on one of the sockets."""
        if self.connecting:
            return selectors.EVENT_WRITE if sock is self.sockets[1] else 0
        events = 0
        for direction in self.directions:
            # While the pipe holds bytes, wait for the sink only. How much more a pipe takes cannot be known: waiting
            # for the source while the pipe may be full would be a busy loop.
            if direction.source is sock and not direction.finished and not direction.held:
                events |= selectors.EVENT_READ
            if direction.sink is sock and direction.held:
                events |= selectors.EVENT_WRITE
        return events

    @property
    def done(self) -> bool:
        return all(direction.closed for direction in self.directions)

    def close(self) -> None:
        self.ended = True
        for sock in self.sockets:
            sock.close()
        for direction in self.directions:
            direction.release()


class Admission(Protocol):
    """Gives the quota that a connection counts for, by its first bytes; None while they are incomplete."""

    def __call__(self, first: bytes) -> PairQuota | None: ...


@dataclass(eq=False, kw_only=True)
class PendingHello:
    """A connection whose ClientHello is incomplete."""

    sock: socket.socket
    source: str
    target: ChooseTarget
    admission: Admission
    deadline: float = field(default_factory=lambda: time.monotonic() + HELLO_TIMEOUT)
    seen: int = 0  # bytes at the last read
    idle: int = 0  # reads in a row without new bytes
    ended: bool = False


def by_server_name(name: str, known: PairQuota, strangers: PairQuota) -> Admission:
    """TLS clients that send this server name count for ``known``, all others for ``strangers``."""

    def decide(first: bytes) -> PairQuota | None:
        try:
            requested = server_name(first)
        except NotTlsError:
            return strangers
        if requested is None:
            return None
        return known if hmac.compare_digest(requested.encode(), name.encode()) else strangers

    return decide


class Splicer:
    """Relays all connections of a process, in one event loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pipes = Pipes()
        self._hellos: dict[int, PendingHello] = {}  # by descriptor, oldest first
        self._handed_over: deque[tuple[socket.socket, socket.socket, PairQuota]] = deque()  # by other threads
        self._wake_up = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_up, selectors.EVENT_READ, self._take_over)

    def listen(self, listener: socket.socket, target: ChooseTarget, quota: PairQuota) -> None:
        """Relay every connection that ``listener`` accepts to the address that ``target`` gives."""
        self._listen(listener, lambda sock, source: self._join(sock, source, target, quota))

    def listen_for_tls(self, listener: socket.socket, target: ChooseTarget, admission: Admission) -> None:
        """The same for TLS connections; ``admission`` chooses the quota by the ClientHello."""

        def take(sock: socket.socket, source: str) -> None:
            self._await_hello(PendingHello(sock=sock, source=source, target=target, admission=admission))

        self._listen(listener, take)

    def join(self, accepted: socket.socket, connected: socket.socket, quota: PairQuota) -> None:
        """Relay between two connections that are there already. Any thread may call this."""
        self._handed_over.append((accepted, connected, quota))
        os.eventfd_write(self._wake_up, 1)

    def _take_over(self) -> None:
        os.eventfd_read(self._wake_up)
        while self._handed_over:
            accepted, connected, quota = self._handed_over.popleft()
            self._make_room_in(quota)
            self._relay(Pair(accepted, connected, self._pipes, quota), "")

    def _listen(self, listener: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, take))

    def fileno(self) -> int:
        """Readable when ``poll`` has something to do, but for connections whose time is over."""
        return self._selector.fileno()

    def run(self) -> None:
        """Serve for ever."""
        while True:
            self.poll(1.0 if self._hellos else None)

    def poll(self, timeout: float | None) -> None:
        """Wait for events and handle them."""
        for key, _ in self._selector.select(timeout):
            key.data()
        now = time.monotonic()
        for hello in list(self._hellos.values()):
            if hello.deadline > now:
                break
            self._refuse(hello)

    def _accept(self, listener: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED_ERRNOS and not self._make_room():
                    time.sleep(EXHAUSTED_PAUSE)
                return
            try:
                take(accepted, address[0])
            except OSError:
                reset(accepted)

    def _make_room(self) -> bool:
        """Free descriptors and memory: refuse the oldest connection without a ClientHello. Whether there was one."""
        if not self._hellos:
            return False
        self._refuse(next(iter(self._hellos.values())))
        return True

    # --- ClientHello --------------------------------------------------------------------------------------------

    def _await_hello(self, hello: PendingHello) -> None:
        if len(self._hellos) >= MAX_HELLOS:
            self._make_room()
        hello.sock.setblocking(False)
        self._selector.register(hello.sock, selectors.EVENT_READ, lambda: self._read_hello(hello))
        self._hellos[hello.sock.fileno()] = hello

    def _read_hello(self, hello: PendingHello) -> None:
        """Peek at a client's first bytes, which stay in the socket for the target."""
        if hello.ended:
            return
        sock = hello.sock
        try:
            first = sock.recv(MAX_HELLO_SIZE, socket.MSG_PEEK)
            hello.idle = 0 if len(first) > hello.seen else hello.idle + 1
            if not first or hello.idle > MAX_IDLE_READS:
                self._refuse(hello)
                return
            hello.seen = len(first)
            quota = hello.admission(first)
            if quota is None and len(first) >= MAX_HELLO_SIZE:
                self._refuse(hello)
                return
            # Be woken by more bytes, not again by the same ones.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(first) + 1 if quota is None else 1)
        except BlockingIOError:
            return
        except OSError:
            self._refuse(hello)
            return
        if quota is not None:
            self._forget(hello)
            try:
                self._join(sock, hello.source, hello.target, quota)
            except OSError:
                reset(sock)

    def _forget(self, hello: PendingHello) -> None:
        hello.ended = True
        self._selector.unregister(hello.sock)
        del self._hellos[hello.sock.fileno()]

    def _refuse(self, hello: PendingHello) -> None:
        self._forget(hello)
        reset(hello.sock)

    # --- relayed connections -------------------------------------------------------------------------------------

    def _join(self, accepted: socket.socket, source: str, target: ChooseTarget, quota: PairQuota) -> None:
        """Connect to the target and relay. On OSError the caller closes the accepted connection."""
        self._make_room_in(quota)
        other, address = self._choose_target(accepted, target)
        try:
            for sock in (accepted, other):
                sock.setblocking(False)
                if sock.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(BlockingIOError):  # EINPROGRESS
                other.connect(address)
        except OSError:
            other.close()
            raise
        self._relay(Pair(accepted, other, self._pipes, quota, source), source)

    def _make_room_in(self, quota: PairQuota) -> None:
        if quota.full and (victim := quota.victim()):
            self._end(victim, abruptly=True)

    def _relay(self, pair: Pair, source: str) -> None:
        for sock in pair.sockets:
            linger(sock, resets=True)  # if this process ends, neither side takes it for the end of what was sent
        pair.quota.add(source, pair)
        try:
            self._watch(pair)
        except OSError:  # the limit of epoll watches is reached
            self._end(pair, abruptly=True)

    def _choose_target(self, accepted: socket.socket, target: ChooseTarget) -> tuple[socket.socket, Target]:
        while True:
            try:
                return target(accepted)
            except OSError as error:
                if error.errno not in EXHAUSTED_ERRNOS or not self._make_room():
                    raise

    def _watch(self, pair: Pair) -> None:
        for sock in pair.sockets:
            events = pair.interest(sock)
            registered = sock in self._selector.get_map()
            if events and registered:
                self._selector.modify(sock, events, lambda: self._move(pair))
            elif events:
                self._selector.register(sock, events, lambda: self._move(pair))
            elif registered:
                self._selector.unregister(sock)

    def _move(self, pair: Pair) -> None:
        if pair.ended:  # by its other socket, or evicted, in the same round of events
            return
        try:
            if pair.connecting:
                code = pair.sockets[1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._end(pair, abruptly=True)
                    return
                pair.connecting = False
            if self._pump(pair):
                pair.quota.touch(pair.source, pair)
            if pair.done:
                self._end(pair, abruptly=False)
            else:
                self._watch(pair)
        except OSError:
            self._end(pair, abruptly=True)

    def _pump(self, pair: Pair) -> bool:
        """Move bytes in both directions. When there is no descriptor for a pipe, another connection is ended for it."""
        moved = False
        while True:
            try:
                for direction in pair.directions:
                    moved |= direction.pump()
                if moved or not sum(direction.copy() for direction in pair.directions):
                    return moved
            except OSError as error:
                victim = pair.quota.victim()
                if error.errno not in EXHAUSTED_ERRNOS:
                    raise
                if not self._make_room():
                    if victim is None or victim is pair:
                        raise
                    self._end(victim, abruptly=True)

    def _end(self, pair: Pair, *, abruptly: bool) -> None:
        pair.quota.discard(pair.source, pair)
        for sock in pair.sockets:
            if sock in self._selector.get_map():
                self._selector.unregister(sock)
        if not abruptly:
            for sock in pair.sockets:
                linger(sock, resets=False)
        pair.close()
