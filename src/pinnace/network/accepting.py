"""Connections of strangers, until they have proved to be none.

Everybody on the site's network can reach our ports. Whoever connects gets a bounded time and a place in a bounded
table, in one thread; when the table is full, the one that has waited longest is reset. A peer of ours proves itself
within milliseconds, so it is never that one, unless thousands come in the same moment.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pinnace.network.handshake import TIMEOUT, HandshakeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.handshake import Handshake

MOST_PENDING = 512  # connections that have not proved themselves
ACCEPTS = 32  # connections that are accepted in a row, before those that wait are looked at
FLOOD_PAUSE = 0.01  # seconds between such rows while strangers come in numbers; packets need the processor more
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # there is no room for one more
EXHAUSTED_PAUSE = 0.05  # seconds, where there are no descriptors and none can be freed
MOST_FILES = 65536  # descriptors that are enough


def raise_file_limit() -> int:
    """Let this process have as many descriptors as the site allows. Gives their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return most if soft == resource.RLIM_INFINITY else min(soft, MOST_FILES)


def reset(sock: socket.socket) -> None:
    """Close a connection so that the other end sees an error, and nothing of it stays in the kernel."""
    linger_zero(sock)
    sock.close()


def linger_zero(sock: socket.socket) -> None:
    """Let close() reset the connection, so that the application sees an error and not an end."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass(eq=False, kw_only=True)
class Pending:
    """A connection whose handshake is under way."""

    sock: socket.socket
    handshake: Handshake
    deadline: float
    wanted: int = 0
    data: bytearray = field(default_factory=bytearray)

    def advance(self) -> int | None:
        """Go on as far as the bytes that are there allow. The other end's index once it has proved itself."""
        try:
            while len(self.data) >= self.wanted:
                part = bytes(self.data[: self.wanted])
                del self.data[: self.wanted]
                send, self.wanted = self.handshake.send(part)
                self._send(send)
        except StopIteration as done:
            index: int = done.value
            return index
        return None

    def begin(self) -> None:
        send, self.wanted = next(self.handshake)
        self._send(send)

    def _send(self, data: bytes) -> None:
        if data and self.sock.send(data) != len(data):
            raise HandshakeError("the other end does not read")


class Acceptor:
    """Takes in connections at a listener, and hands on those that prove themselves."""

    def __init__(
        self,
        listener: socket.socket,
        handshake: Callable[[], Handshake],
        admit: Callable[[socket.socket, int], None],
        most: int = MOST_PENDING,
    ) -> None:
        self._listener = listener
        self._handshake = handshake
        self._admit = admit
        self._most = most
        self._pending: dict[int, Pending] = {}  # by descriptor, the longest waiting first
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """For ever."""
        while True:
            self.look(1.0)

    def look(self, timeout: float) -> None:
        """Do what is to be done, and wait no longer than this for it."""
        if len(self._pending) > self._most // 2:
            time.sleep(FLOOD_PAUSE)
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._accept()
            else:
                self._read(key.data)
        now = time.monotonic()
        for pending in list(self._pending.values()):
            if pending.deadline > now:
                break
            self._drop(pending)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED and not self._drop_oldest():
                    time.sleep(EXHAUSTED_PAUSE)
                return
            if len(self._pending) >= self._most:
                self._drop_oldest()
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        pending = Pending(sock=sock, handshake=self._handshake(), deadline=time.monotonic() + TIMEOUT)
        try:
            pending.begin()
            self._selector.register(sock, selectors.EVENT_READ, pending)
        except (OSError, HandshakeError):
            reset(sock)
            return
        self._pending[sock.fileno()] = pending

    def _read(self, pending: Pending) -> None:
        if pending.sock.fileno() not in self._pending:  # dropped in the same round of events
            return
        try:
            # Never more than the handshake wants: what follows is for whoever gets the connection.
            chunk = pending.sock.recv(pending.wanted - len(pending.data))
            pending.data += chunk
            index = pending.advance()
        except BlockingIOError:
            return
        except (OSError, HandshakeError):
            self._drop(pending)
            return
        if index is None:
            if not chunk:  # it hung up
                self._drop(pending)
        else:
            self._forget(pending)
            pending.sock.setblocking(True)
            try:
                self._admit(pending.sock, index)
            except (OSError, RuntimeError):  # "can't start new thread" is a RuntimeError
                reset(pending.sock)

    def _forget(self, pending: Pending) -> None:
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock.fileno()]

    def _drop(self, pending: Pending) -> None:
        self._forget(pending)
        reset(pending.sock)

    def _drop_oldest(self) -> bool:
        oldest = next(iter(self._pending.values()), None)
        if oldest:
            self._drop(oldest)
        return oldest is not None
