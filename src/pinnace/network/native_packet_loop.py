"""The packet loop in C (``packets/``), called through ctypes, which releases the GIL for as long as a call takes."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace import c_library
from pinnace.network.handshake import HandshakeError
from pinnace.network.packet_loop import FRAME_HEADER
from pinnace.network.tun import MAX_FRAME

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from pinnace.network.addresses import Ranges
    from pinnace.network.egress import Flow, FlowReceiver
    from pinnace.network.packet_loop import Queue

SOURCES = Path(__file__).with_name("packets")
LIBRARY = Path(__file__).with_name("_packets.so")
SEND_BUFFER = 2 * (FRAME_HEADER.size + MAX_FRAME)
MAX_FLOWS = 1024  # places in the table; egress allows fewer
NOBODY = -1  # in place of a node's index

INT, INDEX, ADDRESS, PORT, POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint16, ctypes.c_void_p


def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """The library with the types of its functions. LibraryError if it is not there, or not built from our source."""
    library = c_library.load(path, c_library.sources(SOURCES))
    functions = {
        "queue_new": (
            POINTER,
            INT,
            ctypes.c_uint8,
            POINTER,
            POINTER,
            *2 * (ADDRESS,),
            ctypes.c_uint32,
            *3 * (ADDRESS,),
        ),
        "queue_next": (ctypes.c_ssize_t, POINTER),
        "queue_connect": (INT, POINTER, INDEX, INT),
        "queue_disconnect": (None, POINTER, INDEX, INT),
        "queue_send": (INT, POINTER, INDEX, ctypes.c_char_p, ctypes.c_size_t),
        "flows_new": (POINTER, POINTER, INDEX),
        "flows_add": (INT, POINTER, INT, INT, ADDRESS, ADDRESS, PORT, PORT),
        "flows_remove": (None, POINTER, INDEX),
        "flows_receive": (None, POINTER),
        "receive_frames": (INT, INT, POINTER, INDEX, ctypes.c_int64),
    }
    for name, (result, *arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _not_null(pointer: int | None) -> int:
    if pointer is None:
        raise MemoryError
    return pointer


class NativeFlows:
    """UDP flows whose datagrams the library moves, in both directions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._last_used = (ctypes.c_double * MAX_FLOWS)()
        self.pointer = _not_null(library.flows_new(self._last_used, MAX_FLOWS))
        self._places: dict[int, int] = {}  # by the descriptor of the socket
        threading.Thread(target=self._receive, daemon=True, name="flows").start()

    def add(self, flow: Flow) -> None:
        """Move the datagrams of a flow from now on. OSError if there is no room for another."""
        (inside, inside_port), (outside, outside_port) = flow.inside, flow.outside
        descriptor = flow.sock.fileno()
        place = self._library.flows_add(
            self.pointer, descriptor, flow.tun, inside, outside, inside_port, outside_port
        )  # fmt: skip
        if place < 0:
            raise OSError(errno.ENOSPC, "no more flows can be watched")
        self._places[descriptor] = place

    def remove(self, flow: Flow) -> None:
        """Stop using the flow's socket. The caller may close it afterwards."""
        self._library.flows_remove(self.pointer, self._places.pop(flow.sock.fileno()))

    def last_used(self, flow: Flow) -> float:
        """The time of the flow's last datagram, on ``time.monotonic``'s clock."""
        return self._last_used[self._places[flow.sock.fileno()]]

    def _receive(self) -> None:
        while True:
            self._library.flows_receive(self.pointer)


class NativeQueue:
    """A queue whose packets the library sends to peers that are connected."""

    def __init__(self, library: ctypes.CDLL, tun: int, number: int, ranges: Ranges, flows: NativeFlows) -> None:
        self.tun = tun
        self._library = library
        self._number = number
        self._buffer = bytearray(SEND_BUFFER)
        self._address = (ctypes.c_char * SEND_BUFFER).from_buffer(self._buffer)
        self.pointer = _not_null(
            library.queue_new(
                tun,
                number,
                self._address,
                flows.pointer,
                int(ranges.pods.network_address),
                int(ranges.pods.broadcast_address) + 1,
                ranges.pod_bits,
                int(ranges.nodes.network_address),
                int(ranges.nodes.broadcast_address) + 1,
                int(ranges.resolver),
            )
        )

    def next_frame(self) -> memoryview:
        while (count := self._library.queue_next(self.pointer)) == -errno.EINTR:
            pass  # Python has called the signal's handler
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        FRAME_HEADER.pack_into(self._buffer, 0, self._number << 24 | count)
        return memoryview(self._buffer)[: FRAME_HEADER.size + count]

    def connect(self, peer: int, sock: socket.socket) -> None:
        if self._library.queue_connect(self.pointer, peer, sock.fileno()):
            raise OSError(errno.ENOMEM, "no memory for one more link")

    def disconnect(self, peer: int, sock: socket.socket) -> None:
        self._library.queue_disconnect(self.pointer, peer, sock.fileno())

    def send(self, peer: int, frame: memoryview) -> None:
        if self._library.queue_send(self.pointer, peer, bytes(frame), len(frame)):
            raise ConnectionError("not connected")


class NativePacketLoop:
    """The loop with the library."""

    def __init__(self, library: ctypes.CDLL, tuns: Sequence[int], ranges: Ranges) -> None:
        self._library = library
        flows = NativeFlows(library)
        self.udp_flows: FlowReceiver | None = flows
        queues = [NativeQueue(library, tun, number, ranges, flows) for number, tun in enumerate(tuns)]
        self.queues: Sequence[Queue] = queues
        self._pointers = (ctypes.c_void_p * len(queues))(*(queue.pointer for queue in queues))

    def receive(self, sock: socket.socket, dialler: int | None = None) -> None:
        adopter = NOBODY if dialler is None else dialler
        result = self._library.receive_frames(sock.fileno(), self._pointers, len(self._pointers), adopter)
        if result == -errno.EPROTO:
            raise HandshakeError("a frame of impossible length")
        if result:
            raise OSError(-result, os.strerror(-result))
