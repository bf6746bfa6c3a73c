"""UDP and ICMP echo from the fabric to the outside, through sockets of the host. (TCP goes through ``splice``.)

Packets to the outside come out of the TUN device. Each flow gets a connected socket of the host while it is in use, so
that only its remote end can answer. Answers are written to the device as packets. The packet loop in C moves the
datagrams of a UDP flow by itself once the flow is there; queries for names, and ICMP, stay here.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Protocol

from pinnace.network.tun import VNET_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.network.addresses import Ranges

IDLE_TIMEOUT = 60.0  # seconds without a packet after which a flow's socket is closed
EXPIRY_INTERVAL = 1.0  # seconds between looks for idle flows
MAX_FLOWS = 512  # per node
NAME_SERVER_TIMEOUT = 1.0  # seconds without any answer after which the next name server is asked
DNS = 53
ECHO_REQUEST, ECHO_REPLY = 8, 0
IP_HEADER = struct.Struct("!BBHHHBBHII")
FRAGMENT = 0x3FFF  # of the IP header's flags and offset: "more fragments", or an offset
NO_OFFLOAD = bytes(VNET_HEADER)


def checksum(data: bytes) -> int:
    """The Internet checksum, RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip_packet(protocol: int, source: int, destination: int, payload: bytes) -> bytes:
    """An IPv4 packet around a payload."""
    length = IP_HEADER.size + len(payload)
    fields = [0x45, 0, length, 0, 0x4000, 64, protocol, 0, source, destination]
    fields[7] = checksum(IP_HEADER.pack(*fields))
    return IP_HEADER.pack(*fields) + payload


def udp_packet(source: tuple[int, int], destination: tuple[int, int], payload: bytes) -> bytes:
    """A UDP packet. Its checksum is left out, which IPv4 allows: no wire is crossed on the way to the pod."""
    header = struct.pack("!HHHH", source[1], destination[1], 8 + len(payload), 0)
    return ip_packet(socket.IPPROTO_UDP, source[0], destination[0], header + payload)


@dataclass(kw_only=True, eq=False)
class Flow:
    """A UDP or ICMP echo flow, with its socket on the host. ``inside`` and ``outside`` are addresses with ports.

    For ICMP the port of ``inside`` is the echo identifier, and the port of ``outside`` is 0. Answers are written to the
    TUN queue that the flow began in.
    """

    sock: socket.socket
    tun: int
    protocol: int
    inside: tuple[int, int]
    outside: tuple[int, int]
    server: str = ""  # the name server, if the flow asks one
    last_used: float = field(default_factory=time.monotonic)


class FlowReceiver(Protocol):
    """Writes the answers of flows to the TUN device."""

    def add(self, flow: Flow) -> None:
        """Receive the answers of one more flow. OSError if that is not possible."""

    def remove(self, flow: Flow) -> None:
        """Stop using the flow's socket. The caller may close it afterwards."""

    def last_used(self, flow: Flow) -> float:
        """The time of the flow's last packet, on ``time.monotonic``'s clock."""


class PythonFlows:
    """A thread that writes the answers of flows. ``name_servers`` is told which server has answered."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._selector = selectors.DefaultSelector()
        threading.Thread(target=self._receive, daemon=True, name="egress").start()

    def add(self, flow: Flow) -> None:
        self._selector.register(flow.sock, selectors.EVENT_READ, flow)

    def remove(self, flow: Flow) -> None:
        self._selector.unregister(flow.sock)

    def last_used(self, flow: Flow) -> float:
        return flow.last_used

    def _receive(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                with contextlib.suppress(OSError):
                    self._write_answer(key.data)

    def _write_answer(self, flow: Flow) -> None:
        data = flow.sock.recv(65535)
        flow.last_used = time.monotonic()
        self._name_servers.answered(flow.server)
        if flow.protocol == socket.IPPROTO_UDP:
            packet = udp_packet(flow.outside, flow.inside, data)
        else:
            inside, identifier = flow.inside
            body = struct.pack("!BBHH", ECHO_REPLY, 0, 0, identifier) + data[6:]
            body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
            packet = ip_packet(socket.IPPROTO_ICMP, flow.outside[0], inside, body)
        os.write(flow.tun, NO_OFFLOAD + packet)


class NameServers:
    """Chooses among the host's name servers: the same one while it answers, then the next."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._present = 0
        self._asked: float | None = None  # when the present server was asked first since its last answer

    def choose(self) -> str:
        """The server for the next query. OSError if the host has none."""
        if not self._servers:
            raise OSError("the host has no name server")
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
        elif now - self._asked > NAME_SERVER_TIMEOUT:
            self._present = (self._present + 1) % len(self._servers)
            self._asked = now
        return self._servers[self._present]

    def answered(self, server: str) -> None:
        """Note that a server has answered."""
        if server and server == self._servers[self._present]:
            self._asked = None


class Egress:
    """All flows of a node. ``udp_flows`` moves the datagrams of UDP flows, if the packet loop can."""

    def __init__(self, ranges: Ranges, name_servers: Sequence[str], udp_flows: FlowReceiver | None = None) -> None:
        self._ranges = ranges
        self._resolver = int(ranges.resolver)
        self._name_servers = NameServers(name_servers)
        self._python_flows = PythonFlows(self._name_servers)
        self._udp_flows = udp_flows or self._python_flows
        self._flows: dict[tuple[int, int, int, int, int], Flow] = {}
        self._next_expiry = 0.0
        self._lock = threading.Lock()

    def send(self, packet: memoryview, tun: int) -> None:
        """Send a packet that came out of a TUN queue, with its virtio header, to the outside."""
        with contextlib.suppress(OSError, struct.error, IndexError):  # pods may send malformed packets
            header = (packet[VNET_HEADER] & 0xF) * 4
            fragment, protocol = struct.unpack_from("!HxB", packet, VNET_HEADER + 6)
            source, destination = struct.unpack_from("!II", packet, VNET_HEADER + 12)
            payload = packet[VNET_HEADER + header :]
            if header < IP_HEADER.size or fragment & FRAGMENT:
                return
            if protocol == socket.IPPROTO_UDP:
                sport, dport, _length = struct.unpack_from("!HHI", payload)
                self._send(tun, protocol, (source, sport), (destination, dport), payload[8:])
            elif protocol == socket.IPPROTO_ICMP and payload[0] == ECHO_REQUEST:
                (identifier,) = struct.unpack_from("!H", payload, 4)
                self._send(tun, protocol, (source, identifier), (destination, 0), payload)

    def _send(
        self, tun: int, protocol: int, inside: tuple[int, int], outside: tuple[int, int], payload: memoryview
    ) -> None:
        with self._lock:
            flow = self._flow(tun, protocol, inside, outside)
            flow.last_used = time.monotonic()
            if flow.server:
                self._choose_server(flow)
            flow.sock.send(payload)

    def _choose_server(self, flow: Flow) -> None:
        """Connect a flow of queries to the name server that answers."""
        server = self._name_servers.choose()
        if server != flow.server:
            flow.sock.connect((server, flow.outside[1]))
            flow.server = server

    def _address(self, destination: int, port: int) -> str:
        if destination == self._resolver:
            if port != DNS:
                raise OSError("the name server is there for names alone")  # it may be on the host's loopback
            return self._name_servers.choose()
        address = IPv4Address(destination)
        if not self._ranges.is_outside(address):
            raise OSError("nobody outside has this address")
        return str(address)

    def _flow(self, tun: int, protocol: int, inside: tuple[int, int], outside: tuple[int, int]) -> Flow:
        """The flow of a packet, which begins if there is none."""
        key = (protocol, *inside, *outside)
        flow = self._flows.get(key)
        if flow is None:
            address = self._address(*outside)
            self._expire()
            kind = protocol if protocol == socket.IPPROTO_ICMP else 0
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, kind)
            server = address if outside[0] == self._resolver else ""
            flow = Flow(sock=sock, tun=tun, protocol=protocol, inside=inside, outside=outside, server=server)
            try:
                sock.setblocking(False)
                sock.connect((address, outside[1]))
                self._receiver(flow).add(flow)
            except OSError:
                sock.close()
                raise
            self._flows[key] = flow
        return flow

    def _receiver(self, flow: Flow) -> FlowReceiver:
        is_udp = flow.protocol == socket.IPPROTO_UDP and not flow.server
        return self._udp_flows if is_udp else self._python_flows

    def _expire(self) -> None:
        """Close idle flows, and the longest idle ones while there are too many."""
        now, surplus = time.monotonic(), len(self._flows) + 1 - MAX_FLOWS
        if surplus <= 0 and now < self._next_expiry:
            return
        self._next_expiry = now + EXPIRY_INTERVAL
        last_used = {key: self._receiver(flow).last_used(flow) for key, flow in self._flows.items()}
        for number, key in enumerate(sorted(last_used, key=last_used.__getitem__)):
            if number >= surplus and now - last_used[key] <= IDLE_TIMEOUT:
                return
            flow = self._flows.pop(key)
            self._receiver(flow).remove(flow)
            flow.sock.close()
