"""UDP and ICMP echo from the fabric to the outside, through sockets of the host. (TCP goes through ``splice``.)

Packets to the outside come out of the TUN device. Each flow gets a connected socket of the host while it is in use, so
that only its remote end can answer. Answers are written to the device as packets.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from pinnace.network.tun import VNET_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.network.addresses import Ranges

IDLE_TIMEOUT = 60.0  # seconds without a packet after which a flow's socket is closed
MAX_FLOWS = 512  # per node
DNS = 53
ECHO_REQUEST, ECHO_REPLY = 8, 0
IP_HEADER = struct.Struct("!BBHHHBBHII")
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


@dataclass(kw_only=True)
class Flow:
    """A UDP or ICMP echo flow, with its socket on the host. ``inside`` and ``outside`` are addresses with ports.

    For ICMP the port of ``inside`` is the echo identifier, and the port of ``outside`` is 0.
    """

    sock: socket.socket
    protocol: int
    inside: tuple[int, int]
    outside: tuple[int, int]
    last_used: float = field(default_factory=time.monotonic)


class Egress:
    """All flows of a node."""

    def __init__(self, tun: int, ranges: Ranges, name_servers: Callable[[], list[str]]) -> None:
        self._tun = tun
        self._ranges = ranges
        self._resolver = int(ranges.resolver)
        self._name_servers = name_servers
        self._flows: OrderedDict[tuple[int, int, int, int, int], Flow] = OrderedDict()  # longest idle first
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        threading.Thread(target=self._receive, daemon=True, name="egress").start()

    def send(self, frame: memoryview) -> None:
        """Send a packet that came out of the TUN device, with its virtio header, to the outside."""
        with contextlib.suppress(OSError, struct.error, IndexError):  # pods may send malformed packets
            header = (frame[VNET_HEADER] & 0xF) * 4
            protocol = frame[VNET_HEADER + 9]
            source, destination = struct.unpack_from("!II", frame, VNET_HEADER + 12)
            payload = frame[VNET_HEADER + header :]
            if protocol == socket.IPPROTO_UDP:
                sport, dport = struct.unpack_from("!HH", payload)
                self._flow(protocol, (source, sport), (destination, dport)).sock.send(payload[8:])
            elif protocol == socket.IPPROTO_ICMP and payload[0] == ECHO_REQUEST:
                (identifier,) = struct.unpack_from("!H", payload, 4)
                self._flow(protocol, (source, identifier), (destination, 0)).sock.send(payload)

    def _address(self, destination: int, port: int) -> tuple[str, int]:
        if destination == self._resolver:
            if port != DNS:
                raise OSError("the name server is there for names alone")  # it may be on the host's loopback
            servers = self._name_servers()
            if not servers:
                raise OSError("the host has no name server")
            return servers[0], port
        address = IPv4Address(destination)
        if not self._ranges.is_outside(address):
            raise OSError("nobody outside has this address")
        return str(address), port

    def _flow(self, protocol: int, inside: tuple[int, int], outside: tuple[int, int]) -> Flow:
        key = (protocol, *inside, *outside)
        with self._lock:
            flow = self._flows.get(key)
            if flow is None:
                address = self._address(*outside)
                self._expire()
                kind = protocol if protocol == socket.IPPROTO_ICMP else 0
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, kind)
                flow = Flow(sock=sock, protocol=protocol, inside=inside, outside=outside)
                try:
                    sock.setblocking(False)
                    sock.connect(address)
                    self._selector.register(sock, selectors.EVENT_READ, flow)
                except OSError:
                    sock.close()
                    raise
                self._flows[key] = flow
            self._touch(key, flow)
        return flow

    def _touch(self, key: tuple[int, int, int, int, int], flow: Flow) -> None:
        flow.last_used = time.monotonic()
        self._flows.move_to_end(key)

    def _expire(self) -> None:
        """Close idle flows, and the longest idle ones while there are too many."""
        now = time.monotonic()
        while self._flows:
            key, flow = next(iter(self._flows.items()))
            if len(self._flows) < MAX_FLOWS and now - flow.last_used <= IDLE_TIMEOUT:
                return
            self._selector.unregister(flow.sock)
            flow.sock.close()
            del self._flows[key]

    def _receive(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                with contextlib.suppress(OSError):
                    self._write_answer(key.data)

    def _write_answer(self, flow: Flow) -> None:
        data = flow.sock.recv(65535)
        if flow.protocol == socket.IPPROTO_UDP:
            packet = udp_packet(flow.outside, flow.inside, data)
        else:
            inside, identifier = flow.inside
            body = struct.pack("!BBHH", ECHO_REPLY, 0, 0, identifier) + data[6:]
            body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
            packet = ip_packet(socket.IPPROTO_ICMP, flow.outside[0], inside, body)
        with self._lock:
            key = (flow.protocol, *flow.inside, *flow.outside)
            if key in self._flows:
                self._touch(key, flow)
        os.write(self._tun, NO_OFFLOAD + packet)
