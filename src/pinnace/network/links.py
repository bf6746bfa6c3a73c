"""Links: how packets get from one node's TUN device to another's.

Each node sends over a connection that it dials when it has the first packet for a peer, and receives over those that
its peers dial. So there is nothing to agree on, no full mesh at start, and a broken direction mends itself.

A frame is its length (4 bytes), then what the TUN device gave: the virtio header and the packet.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from pinnace.network.accepting import Acceptor
from pinnace.network.control import hear
from pinnace.network.handshake import NO_NODE, HandshakeError, Protocol, dial, listener_name, listening
from pinnace.network.tun import FRAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.lookup import Address, Lookup

LENGTH = struct.Struct("!I")
WANTED_BYTES = 1 << 18  # kept while a peer is looked for; what comes beyond is dropped, as on any wire
DIALLING_BYTES = 1 << 22  # the same while it is dialled
BACK_OFF = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between attempts to dial
GIVE_UP = 30.0  # seconds of dialling in vain, then until the next frame
PATIENCE = 200  # milliseconds that a full link may hold up the node before packets for it are dropped
BEGIN_LIMIT = 5.0  # seconds in which a new link has to take what has waited for it
RECEIVE_BUFFER = 1 << 20
CONNECTIONS_PER_PEER = 4  # one for packets, one that watches the head, and those whose end we have not seen yet


class Link:
    """The way to one peer."""

    def __init__(self, index: int, peer: int, secret: bytes, lookup: Lookup) -> None:
        self.peer = peer
        self._index = index
        self._secret = secret
        self._lookup = lookup
        self._socket: socket.socket | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._rest = b""
        self._lock = threading.Lock()
        self._wanted = False  # the peer is looked for, or dialled
        self._dialling = False

    def send(self, frame: memoryview) -> None:
        """Send a frame, or drop it if the link is full; keep it for a moment if there is no link yet."""
        sock = self._socket or self._wait(frame)
        if sock is None:
            return
        try:
            self._send(sock, frame)
        except (OSError, ValueError):  # ValueError: it was closed between two system calls
            self.close()

    def _wait(self, frame: memoryview) -> socket.socket | None:
        """Keep a frame for the connection that is being made, or that is wanted from now on; or give that one."""
        with self._lock:
            if self._socket:  # it was made while we waited for the lock
                return self._socket
            most = DIALLING_BYTES if self._dialling else WANTED_BYTES
            if self._waiting_bytes + len(frame) <= most:
                self._waiting.append(bytes(frame))
                self._waiting_bytes += len(frame)
            wanted, self._wanted = self._wanted, True
        if not wanted:
            self._lookup.want(self)
        return None

    def found(self) -> None:
        """The peer has said where it is."""
        self._dialling = True
        try:
            threading.Thread(target=self._dial, daemon=True, name=f"dial-{self.peer}").start()
        except RuntimeError:  # no thread is to be had
            self.give_up()

    def give_up(self) -> None:
        """Drop what has waited. The next frame begins anew."""
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0
            self._dialling = self._wanted = False

    def _send(self, sock: socket.socket, frame: memoryview) -> None:
        if self._rest and not self._flush(sock):
            return
        try:
            sent = sock.send(frame)
        except BlockingIOError:
            if not self._writable(sock):
                return
            sent = 0
        if sent < len(frame):
            self._rest = bytes(frame[sent:])
            self._flush(sock)

    def _flush(self, sock: socket.socket) -> bool:
        """Finish the frame that was cut off. A frame is never given up half-way."""
        while self._rest:
            if not self._writable(sock):
                return False
            with contextlib.suppress(BlockingIOError):
                self._rest = self._rest[sock.send(self._rest) :]
        return True

    @staticmethod
    def _writable(sock: socket.socket) -> bool:
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        return bool(poll.poll(PATIENCE))

    def close(self) -> None:
        """Give the connection up; the next frame makes another."""
        sock, self._socket = self._socket, None
        self._rest = b""
        if sock:
            sock.close()

    def _dial(self) -> None:
        """Make the connection, whatever happens on the way, and send what has waited. Nobody is dialled for ever."""
        deadline, attempt = time.monotonic() + GIVE_UP, 0
        try:
            while time.monotonic() < deadline and (address := self._lookup.find(self.peer)):
                with contextlib.suppress(OSError, HandshakeError):
                    self._begin(self._connect(address))
                    return
                time.sleep(BACK_OFF[min(attempt, len(BACK_OFF) - 1)])
                attempt += 1
        finally:
            self.give_up()

    def _begin(self, sock: socket.socket) -> None:
        """Use a connection from now on. The peer may be gone again before it has read what waited for it."""
        sock.settimeout(BEGIN_LIMIT)  # the node's packets wait for the lock
        with self._lock:
            try:
                while self._waiting:
                    sock.sendall(self._waiting[0])
                    self._waiting_bytes -= len(self._waiting.popleft())
                sock.setblocking(False)
                self._socket = sock
                threading.Thread(target=self._watch, args=(sock,), daemon=True, name=f"watch-{self.peer}").start()
            except (OSError, RuntimeError) as error:  # "can't start new thread" is a RuntimeError
                self._socket = None
                sock.close()
                raise OSError("the connection cannot be used") from error

    def _watch(self, sock: socket.socket) -> None:
        """Give a connection up when its other end does, not when the next frames are lost: another node may follow."""
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLRDHUP)  # nothing is ever received here
        poll.poll()
        if self._socket is sock:
            self.close()

    def _connect(self, address: Address) -> socket.socket:
        sock = socket.create_connection(address, timeout=5)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
            dial(sock, self._secret, Protocol.LINKS, self._index, listener_name(self.peer, *address))
        except BaseException:
            sock.close()
            raise
        return sock


class Discard:
    """The way to an address that nobody can have."""

    def send(self, frame: memoryview) -> None:
        """Nowhere."""


def keep_alive(sock: socket.socket) -> None:
    """Notice within half a minute that the host at the other end is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)


def send_from_tun(tun: int, route: Callable[[int], Link | Discard | None], other: Callable[[memoryview], None]) -> None:
    """Move packets from the device to the link of their destination, for ever. ``other`` gets those that have none."""
    buffer = bytearray(LENGTH.size + FRAME)
    view = memoryview(buffer)
    packet = view[LENGTH.size :]
    destination = struct.Struct("!I")
    while True:
        count = os.readv(tun, [packet])
        if packet[10] >> 4 != 4:
            continue
        link = route(destination.unpack_from(packet, 26)[0])
        if link is None:
            other(packet[:count])
        else:
            LENGTH.pack_into(buffer, 0, count)
            link.send(view[: LENGTH.size + count])


def receive_to_tun(sock: socket.socket, tun: int) -> None:
    """Move packets from a peer's connection to the device, until the connection ends."""
    buffer = bytearray(RECEIVE_BUFFER)
    view = memoryview(buffer)
    begin = end = 0
    while count := sock.recv_into(view[end:]):
        end += count
        while end - begin >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, begin)
            if length > FRAME:
                raise HandshakeError("a frame of impossible length")
            if end - begin - LENGTH.size < length:
                break
            begin += LENGTH.size
            with contextlib.suppress(OSError):  # the kernel refuses what is no packet; the wire goes on
                os.write(tun, view[begin : begin + length])
            begin += length
        if begin == end:
            begin = end = 0
        elif RECEIVE_BUFFER - end < LENGTH.size + FRAME:
            buffer[: end - begin] = buffer[begin:end]
            begin, end = 0, end - begin


class Receivers:
    """The connections over which peers send to us: so many of each, and the newest if there are more."""

    def __init__(self, tun: int) -> None:
        self._tun = tun
        self._by_peer: dict[int, deque[socket.socket]] = {}
        self._lock = threading.Lock()

    def add(self, sock: socket.socket, peer: int) -> None:
        """Receive over one more."""
        with self._lock:
            known = self._by_peer.setdefault(peer, deque())
            known.append(sock)
            surplus = known.popleft() if len(known) > CONNECTIONS_PER_PEER else None
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
                keep_alive(sock)
                receive_to_tun(sock, self._tun)
        finally:
            self._remove(sock, peer)
            sock.close()


def serve(
    listener: socket.socket, secret: bytes, *, index: int, address: str, last_index: int, tun: int,
    stop: Callable[[], None],
) -> None:  # fmt: skip
    """Take in the peers of node ``index``, for ever. ``stop`` is called when the user's own command asks to end."""
    name = listener_name(index, address, listener.getsockname()[1])
    receivers = Receivers(tun)

    def protocol(other: int) -> Protocol | None:
        if other == NO_NODE:
            return Protocol.CONTROL
        return Protocol.LINKS if other <= last_index and other != index else None

    def attend(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if hear(sock):
                stop()

    def admit(sock: socket.socket, other: int) -> None:
        if other == NO_NODE:
            threading.Thread(target=attend, args=(sock,), daemon=True, name="control").start()
        else:
            receivers.add(sock, other)

    Acceptor(listener, lambda: listening(secret, protocol, name), admit).run()
