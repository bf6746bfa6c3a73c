"""Links: TCP connections that carry packets from one node's TUN device to another's.

A node dials a peer when it has the first packet for it. Both send over that connection: the peer does so unless it has
dialled as well. So there is no full mesh at start. Every queue of the TUN device has a link of its own to each peer.
``packet_loop`` moves the packets over them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING

from pinnace.network.accepting import Acceptor
from pinnace.network.control import receive_stop
from pinnace.network.handshake import NO_NODE, HandshakeError, Protocol, dial, listener_name, listening
from pinnace.network.packet_loop import FRAME_HEADER, destination
from pinnace.network.tun import MAX_QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.lookup import Address, Lookup
    from pinnace.network.packet_loop import PacketLoop, Queue

MAX_LOOKUP_BYTES = 1 << 18  # queued while a peer is looked up; frames beyond are dropped, as a network may do
MAX_DIALLING_BYTES = 1 << 22  # queued while it is dialled
DIAL_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between attempts to dial
DIAL_TIMEOUT = 30.0  # seconds of failed attempts after which the queue is dropped; the next frame dials again
FLUSH_TIMEOUT = 5.0  # seconds for a new connection to take the queue
MAX_CONNECTIONS_PER_PEER = 2 * (MAX_QUEUES + 1)  # one for each queue, one that watches the head; as many dead ones


class LinkState(StrEnum):
    """What a link does to get a connection."""

    IDLE = "idle"  # nothing: it has a connection, or no frame has asked for one
    LOOKUP = "lookup"  # the peer's address is being looked up
    DIALLING = "dialling"


class Link:
    """What a queue dials to reach one peer, if it has no connection that the peer has dialled."""

    def __init__(self, queue: Queue, index: int, peer: int, secret: bytes, lookup: Lookup, *, loop: PacketLoop) -> None:
        self.peer = peer
        self._loop = loop
        self._tun_queue = queue
        self._index = index
        self._secret = secret
        self._lookup = lookup
        self._socket: socket.socket | None = None
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._state = LinkState.IDLE

    @property
    def is_used(self) -> bool:
        """Whether it has a connection, or is about to get one."""
        return self._socket is not None or self._state is not LinkState.IDLE

    def send(self, frame: memoryview) -> None:
        """Send a frame, or drop it if the socket is full; queue it if there is no connection yet."""
        used = self._socket
        while not self._sent(frame):
            self._close(used)  # not one that was made in the meantime
            if not self._enqueue(frame):
                return
            used = self._socket

    def _sent(self, frame: memoryview) -> bool:
        try:
            self._tun_queue.send(self.peer, frame)
        except OSError:
            return False
        return True

    def _enqueue(self, frame: memoryview) -> bool:
        """Queue a frame, and look the peer up if nobody does yet. Whether there is a connection by now instead."""
        with self._lock:
            if self._socket:  # connected while we waited for the lock
                return True
            max_bytes = MAX_DIALLING_BYTES if self._state is LinkState.DIALLING else MAX_LOOKUP_BYTES
            if self._queued_bytes + len(frame) <= max_bytes:
                self._queue.append(bytes(frame))
                self._queued_bytes += len(frame)
            is_first = self._state is LinkState.IDLE
            if is_first:
                self._state = LinkState.LOOKUP
        if is_first:
            self._lookup.request(self)
        return False

    def found(self) -> None:
        """Dial: the lookup has found the peer's address."""
        self._state = LinkState.DIALLING
        try:
            threading.Thread(target=self._dial, daemon=True, name=f"dial-{self.peer}").start()
        except RuntimeError:  # "can't start new thread"
            self.give_up()

    def give_up(self) -> None:
        """Drop the queue. The next frame starts a new lookup."""
        with self._lock:
            self._queue.clear()
            self._queued_bytes = 0
            self._state = LinkState.IDLE

    def close(self) -> None:
        """Close the connection; the next frame makes another."""
        self._close(self._socket)

    def _close(self, sock: socket.socket | None) -> None:
        """End a connection, unless that was done already. The thread that receives over it closes it."""
        with self._lock:
            if sock is None or self._socket is not sock:
                return
            self._socket = None
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # wakes those who use the socket
        self._tun_queue.disconnect(self.peer, sock)

    def _dial(self) -> None:
        """Connect and send the queue; after DIAL_TIMEOUT, give up."""
        deadline, attempt, connected = time.monotonic() + DIAL_TIMEOUT, 0, False
        try:
            while time.monotonic() < deadline and (address := self._lookup.find(self.peer)):
                with contextlib.suppress(OSError, HandshakeError):
                    self._start_sending(self._connect(address))
                    connected = True
                    return
                time.sleep(DIAL_BACKOFF[min(attempt, len(DIAL_BACKOFF) - 1)])
                attempt += 1
        finally:
            if not connected:
                self.give_up()

    def _start_sending(self, sock: socket.socket) -> None:
        """Send the queue and use this connection from now on. OSError if the peer is gone before it has read all."""
        sock.settimeout(FLUSH_TIMEOUT)  # other packets of the node wait for the lock
        with self._lock:
            try:
                while self._queue:
                    sock.sendall(self._queue[0])
                    self._queued_bytes -= len(self._queue.popleft())
                sock.settimeout(None)
                self._tun_queue.connect(self.peer, sock)
                self._socket = sock
                threading.Thread(target=self._receive, args=(sock,), daemon=True, name=f"receive-{self.peer}").start()
                self._state = LinkState.IDLE
            except (OSError, RuntimeError) as error:  # "can't start new thread" is a RuntimeError
                self._socket = None
                self._tun_queue.disconnect(self.peer, sock)
                sock.close()
                raise OSError("the connection cannot be used") from error

    def _receive(self, sock: socket.socket) -> None:
        """Receive what the peer sends, until it ends: then frames would be lost, or another node may get its index."""
        try:
            with contextlib.suppress(OSError, HandshakeError):
                self._loop.receive(sock)
        finally:
            self._close(sock)
            sock.close()

    def _connect(self, address: Address) -> socket.socket:
        sock = socket.create_connection(address, timeout=5)
        try:
            prepare(sock)
            dial(sock, self._secret, Protocol.LINKS, self._index, listener_name(self.peer, *address))
        except BaseException:
            sock.close()
            raise
        return sock


class Discard:
    """In place of a link, for addresses that no node can have: drops every frame."""

    def send(self, frame: memoryview) -> None:
        """Drop the frame."""


def prepare(sock: socket.socket) -> None:
    """Send every packet at once, and detect within half a minute that the host at the other end is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)


def send_from_queue(
    queue: Queue, route: Callable[[int], Link | Discard | None], egress: Callable[[memoryview, int], None]
) -> None:
    """Send the packets that the queue does not send by itself over the link that ``route`` gives, for ever.

    ``egress`` gets the packets for which it gives None, and the TUN queue that their answers go to.
    """
    while True:
        frame = queue.next_frame()
        link = route(destination(frame))
        if link is None:
            egress(frame[FRAME_HEADER.size :], queue.tun)
        else:
            link.send(frame)


class Receivers:
    """The connections that peers have dialled: of each peer the newest MAX_CONNECTIONS_PER_PEER."""

    def __init__(self, loop: PacketLoop) -> None:
        self._loop = loop
        self._by_peer: dict[int, deque[socket.socket]] = {}
        self._lock = threading.Lock()

    def add(self, sock: socket.socket, peer: int) -> None:
        """Receive over one more connection."""
        with self._lock:
            known = self._by_peer.setdefault(peer, deque())
            known.append(sock)
            surplus = known.popleft() if len(known) > MAX_CONNECTIONS_PER_PEER else None
        if surplus:
            with contextlib.suppress(OSError):
                surplus.shutdown(socket.SHUT_RDWR)  # its thread closes it
        try:
            threading.Thread(target=self._receive, args=(sock, peer), daemon=True, name=f"receive-{peer}").start()
        except RuntimeError:
            self._remove(sock, peer)
            raise

    def _remove(self, sock: socket.socket, peer: int) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._by_peer[peer].remove(sock)

    def _receive(self, sock: socket.socket, peer: int) -> None:
        try:
            with contextlib.suppress(OSError, HandshakeError):
                prepare(sock)
                self._loop.receive(sock, dialler=peer)
        finally:
            self._remove(sock, peer)
            sock.close()


def serve(
    listener: socket.socket, secret: bytes, *, index: int, address: str, last_index: int, loop: PacketLoop,
    on_stop: Callable[[], object],
) -> None:  # fmt: skip
    """Accept the peers of node ``index``, for ever. ``on_stop`` is called when the user's command asks to end."""
    name = listener_name(index, address, listener.getsockname()[1])
    receivers = Receivers(loop)

    def protocol(peer: int) -> Protocol | None:
        if peer == NO_NODE:
            return Protocol.CONTROL
        return Protocol.LINKS if peer <= last_index and peer != index else None

    def serve_control(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if receive_stop(sock):
                on_stop()

    def admit(sock: socket.socket, peer: int) -> None:
        if peer == NO_NODE:
            threading.Thread(target=serve_control, args=(sock,), daemon=True, name="control").start()
        else:
            receivers.add(sock, peer)

    Acceptor(listener, lambda: listening(secret, protocol, name), admit).run()
