"""The process that serves native sockets on one node: the C library, and beside it what has to ask files and the API.

The library runs in the first thread, and answers pods. It is told over a control socket what it cannot know:

    N key + descriptor         here are the notifications of one more container
    P index, address, port     there a node listens; port 0: nowhere
    S + descriptor             the table of Services (see ``services``)

and it asks:

    W index                    where does this node listen?
    J + two descriptors        join these connections by splicing
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pinnace.kube.watch import end_with_thread
from pinnace.network.accepting import linger, raise_file_limit, reset
from pinnace.network.handshake import Protocol as HandshakeProtocol
from pinnace.network.handshake import derive_key
from pinnace.network.native import library
from pinnace.network.native.services import Services, address_number
from pinnace.network.quota import Quota
from pinnace.network.splice import Pair, Splicer

if TYPE_CHECKING:
    from collections.abc import Callable
    from ipaddress import IPv4Network

    from pinnace.kube.access import Access
    from pinnace.network.addresses import Ranges
    from pinnace.network.native.shared_memory import SharedMemory

MESSAGE = struct.Struct("=cxxxIII")  # struct message in sockets/server.c: kind, number, address, port
NOTIFICATIONS, PEER, SERVICES, WANT, JOIN = b"N", b"P", b"S", b"W", b"J"
REPORT_INTERVAL = 5.0  # seconds between reports of how many connections took which path
STUCK_INTERVAL, STUCK_TIMES = 0.7, 2  # seconds between looks, and how often nothing may have happened
MAX_SPLICED = 4096  # connections


class NotificationSource(Protocol):
    """Where notifications come from: descriptors, each with a key that stays its own."""

    def receive(self) -> tuple[int, int] | None:
        """The next key and descriptor; None when the agent is gone."""


@dataclass(frozen=True, kw_only=True)
class SocketsNode:
    """What the server has to know about its node. ``address`` is the host's own, where peers dial ``listener``.

    ``fabric_sockets`` is a descriptor for sockets of the node's network (see ``network.netns_sockets``), ``find`` gives
    the address of another node by its index, and ``report`` is told how many connections took which path.
    """

    index: int
    ranges: Ranges
    secret: bytes
    address: str
    listener: socket.socket
    fabric_sockets: int
    find: Callable[[int], tuple[str, int] | None]
    access: Callable[[], Access | None]
    report: Callable[[dict[str, int]], None]

    def to_c(self, control: int, *, pass_through: bool) -> library.NodeStruct:
        """The same for the library."""
        ranges = self.ranges
        return library.NodeStruct(
            index=self.index,
            last_index=ranges.last_index,
            address=address_number(self.address),
            port=self.listener.getsockname()[1],
            pod_bits=ranges.pod_bits,
            nodes=_network(ranges.nodes),
            pods=_network(ranges.pods),
            services=_network(ranges.services),
            own_pods=_network(ranges.pods_of(self.index)),
            key=(ctypes.c_uint8 * 32)(*derive_key(self.secret, HandshakeProtocol.SOCKETS)),
            listener=self.listener.fileno(),
            control=control,
            fabric_sockets=self.fabric_sockets,
            pass_through=pass_through,
        )


def _network(network: IPv4Network) -> library.NetworkStruct:
    return library.NetworkStruct(first=int(network.network_address), last=int(network.broadcast_address))


class Control:
    """Python's end of the control socket."""

    def __init__(self, node: SocketsNode, pair: socket.socket) -> None:
        self._node, self._pair = node, pair
        self._splicer: Splicer | None = None
        self._spliced = Quota[Pair](MAX_SPLICED)

    def send(
        self, kind: bytes, *, number: int = 0, address: int = 0, port: int = 0, descriptor: int | None = None
    ) -> None:
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor is not None else []
        )
        self._pair.sendmsg([MESSAGE.pack(kind, number, address, port)], rights)

    def publish_services(self, table: bytes) -> None:
        with open(os.memfd_create("services"), "wb", buffering=0) as file:  # noqa: PTH123 - it has no path
            file.write(table)
            self.send(SERVICES, descriptor=file.fileno())

    def pass_on(self, source: NotificationSource) -> None:
        """Give the server what the agent has, until the agent is gone: then everything here ends."""
        while received := source.receive():
            key, descriptor = received
            self.send(NOTIFICATIONS, number=key, descriptor=descriptor)
            os.close(descriptor)
        os._exit(0)

    def answer(self) -> None:
        """Answer what the server asks, for ever."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._pair, MESSAGE.size, 2)
            kind, number, _, _ = MESSAGE.unpack(data)
            if kind == WANT:
                address, port = self._find(number) or ("0.0.0.0", 0)  # noqa: S104 - nowhere
                self.send(PEER, number=number, address=address_number(address), port=port)
            elif kind == JOIN and len(descriptors) == 2:  # the kernel drops those that exceed our limit
                self._join(*map(_adopt, descriptors))
            else:
                for descriptor in descriptors:
                    reset(_adopt(descriptor))

    def _find(self, index: int) -> tuple[str, int] | None:
        try:
            return self._node.find(index)
        except (OSError, ValueError):  # the shared file system fails, or a record is not complete
            return None

    def _join(self, knock: socket.socket, peer: socket.socket) -> None:
        if self._splicer is None:
            self._splicer = Splicer()
            threading.Thread(target=self._splicer.run, daemon=True, name="splice").start()
        self._splicer.join(peer, knock, self._spliced)


def _adopt(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def report_changes(node: SocketsNode, memory: SharedMemory) -> None:
    """Report how many connections took which path, for ever."""
    reported: dict[str, int] = {}
    while True:
        time.sleep(REPORT_INTERVAL)
        counters = memory.counters()
        if counters != reported:
            node.report(counters)
            reported = counters


def end_if_stuck(memory: SharedMemory) -> None:
    """End this process if its first thread does not go on: the agent starts another one.

    A pod may have found a way to hold it up, for example by an address in a page that never comes.
    """
    before, stuck = -1, 0
    while stuck < STUCK_TIMES:  # once is not enough: the whole job may have been suspended for a while
        time.sleep(STUCK_INTERVAL)
        ticks = memory.ticks()
        before, stuck = ticks, stuck + 1 if ticks == before else 0
    os.kill(os.getpid(), signal.SIGKILL)


def run(node: SocketsNode, memory: SharedMemory, source: NotificationSource, *, pass_through: bool = False) -> None:
    """Serve native sockets until the agent is gone.

    With ``pass_through`` the kernel is told to execute every call as it is: a server that does not stay up must not
    keep pods from the general path.
    """
    raise_file_limit()
    threading.excepthook = end_with_thread
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    node.listener.setblocking(False)
    # Those that it accepts have these, too. Connections that are not a pod's yet end with a reset if this process ends.
    node.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    linger(node.listener, resets=True)
    control = Control(node, ours)
    services = Services(node.access, control.publish_services)
    for name, work in (
        ("notifications", lambda: control.pass_on(source)),
        ("control", control.answer),
        ("services", services.run),
        ("report", lambda: report_changes(node, memory)),
        ("watchdog", lambda: end_if_stuck(memory)),
    ):
        threading.Thread(target=work, daemon=True, name=name).start()
    library.load().serve(memory.address, node.to_c(theirs.fileno(), pass_through=pass_through))
    raise RuntimeError("the server of native sockets has ended")
