"""TCP connections that cross the border of the fabric, joined in the kernel with splice(2).

Outward, the fabric's nftables send every connection to the outside to a listener of ours, which asks the kernel where
it wanted to go. Inward, a listener on the host leads to a fixed address in the fabric. Either way two sockets are
joined by two pipes; Python sees when there is something to move, and never the bytes.

Strangers can connect to the listeners on the host. A connection that only waits costs two descriptors; pipes are lent
to those that have something to move. Every listener has a quota (see ``quota``), and nothing that happens to one
connection ends the loop.
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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pinnace.network.accepting import ACCEPTS, EXHAUSTED, EXHAUSTED_PAUSE, linger_zero, reset
from pinnace.network.tls import LONGEST, NotTlsError, server_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.quota import Quota

    Address = tuple[str, int]
    Partner = Callable[[socket.socket], tuple[socket.socket, Address]]
    PairQuota = Quota["Pair"]
    PipeEnds = tuple[int, int]

SO_ORIGINAL_DST = 80
CHUNK = 1 << 20
PIPE = 1 << 20
F_SETPIPE_SZ = 1031
ROUNDS = 8  # of a pipe's size each that a connection may move in a row, while others wait
SPARE_PIPES = 64  # kept open for the next that needs one
MOST_GREETING = 512  # TLS clients that have not said yet whom they want
GREETING_LIMIT = 10.0  # seconds for that
MOST_IDLE = 8  # looks that may find nothing new; the kernel calls us again and again for who will not say more
BACKLOG = 4096  # the kernel takes less where net.core.somaxconn is less


def original_destination(sock: socket.socket) -> Address:
    """Where a connection wanted to go before netfilter redirected it to us."""
    raw = sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port


class Pipes:
    """Pipes to lend. Empty ones come back."""

    def __init__(self) -> None:
        self._spare: list[PipeEnds] = []

    def take(self) -> PipeEnds:
        if self._spare:
            return self._spare.pop()
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the user's pipe budget may be spent; the default size works too
            fcntl.fcntl(write_end, F_SETPIPE_SZ, PIPE)
        return read_end, write_end

    def give_back(self, pipe: PipeEnds, *, empty: bool) -> None:
        if empty and len(self._spare) < SPARE_PIPES:
            self._spare.append(pipe)
        else:
            for end in pipe:
                os.close(end)


@dataclass(eq=False, kw_only=True)
class Half:
    """One direction of a connection: what is read from ``source`` goes through a pipe to ``sink``."""

    source: socket.socket
    sink: socket.socket
    pipes: Pipes
    pipe: PipeEnds | None = None
    held: int = 0
    finished: bool = False  # the source has said all
    closed: bool = False  # and the sink has been told

    def pump(self) -> bool:
        """Move what goes without waiting, and not so much that others wait for long. Whether anything moved."""
        any_moved = False
        for _ in range(0 if self.closed else ROUNDS):
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
        """Read a little where splice(2) does not: it stops before urgent data for good, recv(2) goes on behind it.

        Whether there was anything to read, were it the end.
        """
        if self.finished or self.held:
            return False
        self.pipe = self.pipe or self.pipes.take()
        try:
            self.held = os.write(self.pipe[1], self.source.recv(select.PIPE_BUF))  # so much goes into a pipe at once
        except BlockingIOError:
            self.release()
            return False
        self.finished = not self.held
        return True

    def release(self) -> None:
        """Give the pipe back."""
        if self.pipe:
            self.pipes.give_back(self.pipe, empty=not self.held)
            self.pipe = None

    def _fill(self) -> int:
        if self.pipe is None:
            self.pipe = self.pipes.take()
        try:
            count = os.splice(self.source.fileno(), self.pipe[1], CHUNK, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return 0
        # Before urgent data splice(2) says 0 as at the end, if the end has come.
        self.finished = count == 0 and not self.source.recv(1, socket.MSG_PEEK)
        self.held += count
        return count

    def _drain(self) -> int:
        assert self.pipe is not None  # noqa: S101 - something is held
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
        self.halves = [Half(source=source, sink=sink, pipes=pipes) for source, sink in ((inner, outer), (outer, inner))]

    def interest(self, sock: socket.socket) -> int:
        """What to wait for on one of the sockets."""
        if self.connecting:
            return selectors.EVENT_WRITE if sock is self.sockets[1] else 0
        events = 0
        for half in self.halves:
            # What is held waits for the sink. How much a pipe takes is the kernel's secret: to wait for more while it
            # may be full would be to spin.
            if half.source is sock and not half.finished and not half.held:
                events |= selectors.EVENT_READ
            if half.sink is sock and half.held:
                events |= selectors.EVENT_WRITE
        return events

    @property
    def done(self) -> bool:
        return all(half.closed for half in self.halves)

    def close(self) -> None:
        self.ended = True
        for sock in self.sockets:
            sock.close()
        for half in self.halves:
            half.release()


class Admission(Protocol):
    """Which quota a connection counts for, by its first bytes; None while too few have come."""

    def __call__(self, first: bytes) -> PairQuota | None: ...


@dataclass(eq=False, kw_only=True)
class Greeting:
    """A connection whose first bytes decide what becomes of it."""

    sock: socket.socket
    source: str
    partner: Partner
    admission: Admission
    deadline: float = field(default_factory=lambda: time.monotonic() + GREETING_LIMIT)
    seen: int = 0  # bytes that were there at the last look
    idle: int = 0  # looks in a row that found no more
    ended: bool = False


def by_server_name(name: str, known: PairQuota, strangers: PairQuota) -> Admission:
    """TLS clients that ask for this name are known; all others share what strangers get."""

    def decide(first: bytes) -> PairQuota | None:
        try:
            asked = server_name(first)
        except NotTlsError:
            return strangers
        if asked is None:
            return None
        return known if hmac.compare_digest(asked.encode(), name.encode()) else strangers

    return decide


class Splicer:
    """All connections of a process, in one loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pipes = Pipes()
        self._greetings: dict[int, Greeting] = {}  # by descriptor, the longest waiting first

    def listen(self, listener: socket.socket, partner: Partner, quota: PairQuota) -> None:
        """Join every connection that ``listener`` accepts with a socket to the address that ``partner`` gives."""
        self._listen(listener, lambda sock, source: self._join(sock, source, partner, quota))

    def listen_for_tls(self, listener: socket.socket, partner: Partner, admission: Admission) -> None:
        """The same for connections whose client speaks first; its first bytes decide for which quota they count."""
        self._listen(
            listener,
            lambda sock, source: self._greet(Greeting(sock=sock, source=source, partner=partner, admission=admission)),
        )

    def _listen(self, listener: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, take))

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(1.0 if self._greetings else None):
                key.data()
            now = time.monotonic()
            for greeting in list(self._greetings.values()):
                if greeting.deadline > now:
                    break
                self._refuse(greeting)

    def _accept(self, listener: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
        for _ in range(ACCEPTS):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED and not self._make_room():
                    time.sleep(EXHAUSTED_PAUSE)
                return
            try:
                take(accepted, address[0])
            except OSError:
                reset(accepted)

    def _make_room(self) -> bool:
        """There are no descriptors, or no memory: give up whoever has waited longest to be heard, if anybody has."""
        if not self._greetings:
            return False
        self._refuse(next(iter(self._greetings.values())))
        return True

    # --- first bytes --------------------------------------------------------------------------------------------

    def _greet(self, greeting: Greeting) -> None:
        if len(self._greetings) >= MOST_GREETING:
            self._make_room()
        greeting.sock.setblocking(False)
        self._selector.register(greeting.sock, selectors.EVENT_READ, lambda: self._heed(greeting))
        self._greetings[greeting.sock.fileno()] = greeting

    def _heed(self, greeting: Greeting) -> None:
        """Look at what a client says first, and leave it for whom it is meant."""
        if greeting.ended:
            return
        sock = greeting.sock
        try:
            first = sock.recv(LONGEST, socket.MSG_PEEK)
            greeting.idle = 0 if len(first) > greeting.seen else greeting.idle + 1
            if not first or greeting.idle > MOST_IDLE:
                self._refuse(greeting)
                return
            greeting.seen = len(first)
            quota = greeting.admission(first)
            if quota is None and len(first) >= LONGEST:
                self._refuse(greeting)
                return
            # Be woken by more than what is there, not again by the same.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(first) + 1 if quota is None else 1)
        except BlockingIOError:
            return
        except OSError:
            self._refuse(greeting)
            return
        if quota is not None:
            self._forget(greeting)
            try:
                self._join(sock, greeting.source, greeting.partner, quota)
            except OSError:
                reset(sock)

    def _forget(self, greeting: Greeting) -> None:
        greeting.ended = True
        self._selector.unregister(greeting.sock)
        del self._greetings[greeting.sock.fileno()]

    def _refuse(self, greeting: Greeting) -> None:
        self._forget(greeting)
        reset(greeting.sock)

    # --- joined connections -------------------------------------------------------------------------------------

    def _join(self, accepted: socket.socket, source: str, partner: Partner, quota: PairQuota) -> None:
        """Raises OSError if there is no way on; the connection is then the caller's to close."""
        if quota.full and (victim := quota.victim()):
            self._end(victim, abruptly=True)
        other, address = self._find_partner(accepted, partner)
        try:
            for sock in (accepted, other):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(BlockingIOError):  # EINPROGRESS
                other.connect(address)
        except OSError:
            other.close()
            raise
        pair = Pair(accepted, other, self._pipes, quota, source)
        quota.add(source, pair)
        try:
            self._watch(pair)
        except OSError:  # the kernel watches no more for us
            self._end(pair, abruptly=True)

    def _find_partner(self, accepted: socket.socket, partner: Partner) -> tuple[socket.socket, Address]:
        while True:
            try:
                return partner(accepted)
            except OSError as error:
                if error.errno not in EXHAUSTED or not self._make_room():
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
        if pair.ended:  # by its other socket, or for want of room, in the same round of events
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
        """Move what can be moved. Where there is no descriptor for a pipe, one that holds some has to go."""
        moved = False
        while True:
            try:
                for half in pair.halves:
                    moved |= half.pump()
                if moved or not sum(half.copy() for half in pair.halves):
                    return moved
            except OSError as error:
                victim = pair.quota.victim()
                if error.errno not in EXHAUSTED:
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
        if abruptly:
            for sock in pair.sockets:
                linger_zero(sock)
        pair.close()
