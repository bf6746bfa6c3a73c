"""TCP connections that cross the border of the fabric, joined in the kernel with splice(2).

Outward, the fabric's nftables send every connection to the outside to a listener of ours, which asks the kernel where
it wanted to go. Inward, a listener on the host leads to a fixed address in the fabric. Either way two sockets are
joined by two pipes; Python sees when there is something to move, and never the bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Address = tuple[str, int]

SO_ORIGINAL_DST = 80
CHUNK = 1 << 20
PIPE = 1 << 20
F_SETPIPE_SZ = 1031


def original_destination(sock: socket.socket) -> Address:
    """Where a connection wanted to go before netfilter redirected it to us."""
    raw = sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port


@dataclass(eq=False, kw_only=True)
class Half:
    """One direction of a connection: what is read from ``source`` goes through the pipe to ``sink``."""

    source: socket.socket
    sink: socket.socket
    read_end: int
    write_end: int
    held: int = 0
    finished: bool = False  # the source has said all
    closed: bool = False  # and the sink has been told

    def pump(self) -> None:
        """Move as much as goes without waiting."""
        while not self.closed:
            moved = 0
            if not self.finished:
                moved = self._fill()
            if self.held:
                moved += self._drain()
            if self.finished and not self.held:
                self.closed = True
                with contextlib.suppress(OSError):
                    self.sink.shutdown(socket.SHUT_WR)
            if not moved:
                return

    def _fill(self) -> int:
        try:
            count = os.splice(self.source.fileno(), self.write_end, CHUNK, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return 0
        self.finished = count == 0
        self.held += count
        return count

    def _drain(self) -> int:
        try:
            count = os.splice(self.read_end, self.sink.fileno(), self.held, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            return 0
        self.held -= count
        return count


class Pair:
    """Two joined sockets. ``outer`` may still be connecting."""

    def __init__(self, inner: socket.socket, outer: socket.socket) -> None:
        self.sockets = (inner, outer)
        self.connecting = True
        self.ended = False
        self.halves: list[Half] = []
        for source, sink in ((inner, outer), (outer, inner)):
            read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # the user's pipe budget may be spent; the default size works too
                fcntl.fcntl(write_end, F_SETPIPE_SZ, PIPE)
            self.halves.append(Half(source=source, sink=sink, read_end=read_end, write_end=write_end))

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
            os.close(half.read_end)
            os.close(half.write_end)


class Splicer:
    """All connections of a process, in one loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def listen(
        self, listener: socket.socket, partner: Callable[[socket.socket], tuple[socket.socket, Address]]
    ) -> None:
        """Join every connection that ``listener`` accepts with a socket to the address that ``partner`` gives."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, partner))

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _accept(
        self, listener: socket.socket, partner: Callable[[socket.socket], tuple[socket.socket, Address]]
    ) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        try:
            other, address = partner(accepted)
        except OSError:
            reset(accepted)
            return
        for sock in (accepted, other):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = other.connect_ex(address)
        if code not in {0, errno.EINPROGRESS}:
            reset(accepted)
            other.close()
            return
        self._watch(Pair(accepted, other))

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
        if pair.ended:  # by its other socket, in the same round of events
            return
        try:
            if pair.connecting:
                code = pair.sockets[1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._end(pair, abruptly=True)
                    return
                pair.connecting = False
            for half in pair.halves:
                half.pump()
        except OSError:
            self._end(pair, abruptly=True)
            return
        if pair.done:
            self._end(pair, abruptly=False)
        else:
            self._watch(pair)

    def _end(self, pair: Pair, *, abruptly: bool) -> None:
        for sock in pair.sockets:
            if sock in self._selector.get_map():
                self._selector.unregister(sock)
        if abruptly:
            for sock in pair.sockets:
                linger_zero(sock)
        pair.close()


def linger_zero(sock: socket.socket) -> None:
    """Let close() reset the connection, so that the application sees an error and not an end."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def reset(sock: socket.socket) -> None:
    linger_zero(sock)
    sock.close()
