"""Moves packets between the queues of the TUN device and sockets: the loop that every packet goes through.

There are two implementations with the same behaviour: this one, and ``native_packet_loop`` in C, which is used where it
was built. Both leave to their caller every packet for whose destination they have no connection.

A frame is a header of four bytes (the queue in the first, the length in the other three) and what was read from the
TUN device: the virtio header and the packet. The receiver writes it to its queue of the same number, because the kernel
sends the packets of a flow through the queue that its last packet came in by.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING, Protocol

from pinnace.network.handshake import HandshakeError
from pinnace.network.tun import MAX_FRAME, VNET_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinnace.network.egress import FlowReceiver

FRAME_HEADER = struct.Struct("!I")
ADDRESS = struct.Struct("!I")
MAX_LENGTH = 0xFFFFFF  # that fits beside the queue's number
MIN_PACKET = VNET_HEADER + 20  # bytes of a virtio header and an IPv4 header
SEND_TIMEOUT_MS = 200  # milliseconds that a full socket may block a queue before frames are dropped
RECEIVE_BUFFER = 1 << 20


def frame_header(queue: int, length: int) -> bytes:
    """The header of a frame that was read from a queue."""
    return FRAME_HEADER.pack(queue << 24 | length)


def destination(frame: memoryview) -> int:
    """The destination address of a frame's packet."""
    address: int = ADDRESS.unpack_from(frame, FRAME_HEADER.size + VNET_HEADER + 16)[0]
    return address


class Queue(Protocol):
    """A queue of the TUN device, and the connections over which its packets leave."""

    tun: int

    def next_frame(self) -> memoryview:
        """The next IPv4 packet that the caller has to send, as a frame. It is valid until the next call."""

    def connect(self, peer: int, sock: socket.socket) -> None:
        """Send to a peer over this socket from now on."""

    def disconnect(self, peer: int, sock: socket.socket) -> None:
        """Stop using this socket for the peer. The caller may close it afterwards."""

    def send(self, peer: int, frame: memoryview) -> None:
        """Send a frame, or drop it if the socket is full. OSError if the connection is broken, or there is none."""


class PacketLoop(Protocol):
    """All queues of a node's TUN device."""

    queues: Sequence[Queue]
    udp_flows: FlowReceiver | None  # moves UDP flows to the outside by itself, if it can

    def receive(self, sock: socket.socket, dialler: int | None = None) -> None:
        """Write the frames of a peer's connection to the device, until the connection ends.

        If ``dialler`` has made it, the queue of its first frame sends to that peer over it, too, unless we have made a
        connection: answers then carry the acknowledgements of TCP. After the return no queue uses the socket for that.
        """


class LinkConnection:
    """A connection to a peer. Frames are sent whole or not at all."""

    def __init__(self, sock: socket.socket, *, adopted: bool = False) -> None:
        self.sock, self.adopted = sock, adopted
        self._in_use = threading.Lock()
        self._is_over = False
        self._rest = b""  # of a frame that was sent in part
        self._is_full = False  # for SEND_TIMEOUT_MS, and has taken nothing since

    def end(self) -> None:
        """After this the socket is not used any more and may be closed: its descriptor may be another's then."""
        with self._in_use:
            self._is_over = True

    def send(self, frame: memoryview) -> None:
        """Send a frame, or drop it if the socket is full."""
        with self._in_use:
            if self._is_over:
                raise ConnectionError("not connected")
            self._send(frame)

    def _send(self, frame: memoryview) -> None:
        if self._rest and not self._flush():
            return
        try:
            sent = self.sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if not self._is_writable():
                return
            sent = 0
        if sent < len(frame):
            self._rest = bytes(frame[sent:])
            self._flush()

    def _flush(self) -> bool:
        """Send the rest of a frame that was sent in part. The rest is never dropped: it would break the framing."""
        while self._rest:
            if not self._is_writable():
                return False
            with contextlib.suppress(BlockingIOError):
                self._rest = self._rest[self.sock.send(self._rest, socket.MSG_DONTWAIT) :]
        return True

    def _is_writable(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        self._is_full = not poll.poll(0 if self._is_full else SEND_TIMEOUT_MS)
        return not self._is_full


class PythonQueue:
    """A queue whose caller sends every packet."""

    def __init__(self, tun: int, number: int) -> None:
        self.tun = tun
        self._number = number
        self._connections: dict[int, LinkConnection] = {}
        self._buffer = bytearray(FRAME_HEADER.size + MAX_FRAME)

    def next_frame(self) -> memoryview:
        frame = memoryview(self._buffer)
        packet = frame[FRAME_HEADER.size :]
        while True:
            count = os.readv(self.tun, [packet])
            if count >= MIN_PACKET and packet[VNET_HEADER] >> 4 == 4:
                FRAME_HEADER.pack_into(self._buffer, 0, self._number << 24 | count)
                return frame[: FRAME_HEADER.size + count]

    def connect(self, peer: int, sock: socket.socket) -> None:
        self._replace(peer, LinkConnection(sock))

    def adopt(self, peer: int, sock: socket.socket) -> None:
        """Send to a peer over a connection that it has made, unless we have made one."""
        present = self._connections.get(peer)
        if not present or present.adopted:
            self._replace(peer, LinkConnection(sock, adopted=True))

    def _replace(self, peer: int, connection: LinkConnection) -> None:
        replaced = self._connections.get(peer)
        self._connections[peer] = connection
        if replaced:
            replaced.end()

    def disconnect(self, peer: int, sock: socket.socket) -> None:
        connection = self._connections.get(peer)
        if connection and connection.sock is sock:
            del self._connections[peer]
            connection.end()

    def send(self, peer: int, frame: memoryview) -> None:
        connection = self._connections.get(peer)
        if connection is None:
            raise ConnectionError("not connected")
        try:
            connection.send(frame)
        except ValueError as error:  # the socket was closed between two system calls
            raise ConnectionError("closed") from error


class PythonPacketLoop:
    """The loop without the library."""

    def __init__(self, tuns: Sequence[int]) -> None:
        self.udp_flows: FlowReceiver | None = None
        self._queues = [PythonQueue(tun, number) for number, tun in enumerate(tuns)]
        self.queues: Sequence[Queue] = self._queues

    def receive(self, sock: socket.socket, dialler: int | None = None) -> None:
        adopted: PythonQueue | None = None
        try:
            for number, packet in received_frames(sock):
                queue = self._queues[number % len(self._queues)]
                if dialler is not None and not adopted:
                    adopted = queue
                    adopted.adopt(dialler, sock)
                with contextlib.suppress(OSError):  # the kernel refuses malformed packets; the connection goes on
                    os.write(queue.tun, packet)
        finally:
            if dialler is not None and adopted:
                adopted.disconnect(dialler, sock)


def received_frames(sock: socket.socket) -> Iterator[tuple[int, memoryview]]:
    """The frames that come over a connection, each as its queue and what was read from it there, until it ends."""
    buffer = bytearray(RECEIVE_BUFFER)
    view = memoryview(buffer)
    begin = end = 0
    while count := sock.recv_into(view[end:]):
        end += count
        while end - begin >= FRAME_HEADER.size:
            (header,) = FRAME_HEADER.unpack_from(buffer, begin)
            length = header & MAX_LENGTH
            if length > MAX_FRAME:
                raise HandshakeError("a frame of impossible length")
            if end - begin - FRAME_HEADER.size < length:
                break
            begin += FRAME_HEADER.size
            yield header >> 24, view[begin : begin + length]
            begin += length
        if begin == end:
            begin = end = 0
        elif RECEIVE_BUFFER - end < FRAME_HEADER.size + MAX_FRAME:
            buffer[: end - begin] = buffer[begin:end]
            begin, end = 0, end - begin
