"""Accepts connections and runs their handshakes, with bounded cost for connections of strangers.

Everybody on the site's network can reach our ports. A new connection gets a bounded time and a place in a bounded
table, all in one thread. When the table is full, the connection that has waited longest is reset. A peer of ours
completes its handshake within milliseconds, so it is never that one, unless thousands connect in the same moment.
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

from pinnace.network.handshake import HANDSHAKE_TIMEOUT, HandshakeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.handshake import Handshake

MAX_PENDING = 512  # connections whose handshake is not complete
ACCEPT_BATCH = 32  # connections accepted in a row before the pending ones are served
FLOOD_PAUSE = 0.01  # seconds between batches while the table is half full; the packets need the CPU more
EXHAUSTED_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # of accept(2): no descriptors or memory
EXHAUSTED_PAUSE = 0.05  # seconds before the next accept(2) when no descriptor can be freed
MAX_FILES = 65536  # descriptors that we ask for at most


def raise_file_limit() -> int:
    """Raise RLIMIT_NOFILE as far as the site allows, up to MAX_FILES. Returns how many descriptors we may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return most if soft == resource.RLIM_INFINITY else min(soft, MAX_FILES)


def reset(sock: socket.socket) -> None:
    """Close a connection with a TCP reset: the other end sees an error, and no state stays in the kernel."""
    linger(sock, resets=True)
    sock.close()


def linger(sock: socket.socket, *, resets: bool) -> None:
    """Whether close(), or the end of this process, resets the connection, so that the other end sees an error."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", resets, 0))


@dataclass(eq=False, kw_only=True)
class PendingHandshake:
    """A connection whose handshake is under way."""

    sock: socket.socket
    handshake: Handshake
    deadline: float
    wanted: int = 0
    data: bytearray = field(default_factory=bytearray)

    def advance(self) -> int | None:
        """Continue with the bytes received so far. Returns the other end's index when the handshake is complete."""
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
    """Accepts connections and passes those that complete the handshake to ``admit``, with the peer's index."""

    def __init__(
        self,
        listener: socket.socket,
        handshake: Callable[[], Handshake],
        admit: Callable[[socket.socket, int], None],
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._listener = listener
        self._handshake = handshake
        self._admit = admit
        self._max_pending = max_pending
        self._pending: dict[int, PendingHandshake] = {}  # by descriptor, oldest first
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable when ``poll`` has something to do, but for connections whose time is over."""
        return self._selector.fileno()

    def run(self) -> None:
        """Serve for ever."""
        while True:
            self.poll(1.0)

    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for events and handle them."""
        if len(self._pending) > self._max_pending // 2:
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
        for _ in range(ACCEPT_BATCH):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED_ERRNOS and not self._drop_oldest():
                    time.sleep(EXHAUSTED_PAUSE)
                return
            if len(self._pending) >= self._max_pending:
                self._drop_oldest()
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        pending = PendingHandshake(
            sock=sock, handshake=self._handshake(), deadline=time.monotonic() + HANDSHAKE_TIMEOUT
        )
        try:
            pending.begin()
            self._selector.register(sock, selectors.EVENT_READ, pending)
        except (OSError, HandshakeError):
            reset(sock)
            return
        self._pending[sock.fileno()] = pending

    def _read(self, pending: PendingHandshake) -> None:
        if pending.sock.fileno() not in self._pending:  # dropped in the same round of events
            return
        try:
            # Never more than the handshake needs: the bytes after it belong to the next owner of the connection.
            chunk = pending.sock.recv(pending.wanted - len(pending.data))
            pending.data += chunk
            index = pending.advance()
        except BlockingIOError:
            return
        except (OSError, HandshakeError):
            self._drop(pending)
            return
        if index is None:
            if not chunk:  # closed by the other end
                self._drop(pending)
        else:
            self._forget(pending)
            pending.sock.setblocking(True)
            try:
                self._admit(pending.sock, index)
            except (OSError, RuntimeError):  # "can't start new thread" is a RuntimeError
                reset(pending.sock)

    def _forget(self, pending: PendingHandshake) -> None:
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock.fileno()]

    def _drop(self, pending: PendingHandshake) -> None:
        self._forget(pending)
        reset(pending.sock)

    def _drop_oldest(self) -> bool:
        oldest = next(iter(self._pending.values()), None)
        if oldest:
            self._drop(oldest)
        return oldest is not None
