"""Interfaces, addresses and routes of the caller's network namespace, by rtnetlink(7): a host needs no ``ip``.

A change is data that can be compared and printed; ``apply`` makes a list of them, in order.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Address, IPv4Network

__all__ = ["Address", "Change", "LinkUp", "Route", "apply"]

RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE = 16, 20, 24
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
IFF_UP = 0x1
IFLA_MTU, IFLA_TXQLEN = 4, 13
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_OIF, RTA_PREFSRC = 1, 4, 7
RT_TABLE_MAIN, RTPROT_BOOT = 254, 3
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK = 0, 253
RTN_UNICAST, RTN_UNREACHABLE = 1, 7

NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, sequence, port
NLMSGERR = struct.Struct("=i")  # the errno, negative; the request follows
IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, change
IFADDRMSG = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
RTMSG = struct.Struct(
    "=BBBBBBBBI"
)  # family, lengths of destination and source, tos, table, protocol, scope, type, flags
RTATTR = struct.Struct("=HH")  # length, type
ANSWER_LIMIT = 10.0  # seconds


@dataclass(frozen=True, kw_only=True)
class LinkUp:
    """``ip link set DEVICE [mtu …] [txqueuelen …] up``."""

    device: str
    mtu: int | None = None
    queue_length: int | None = None

    def encode(self) -> tuple[int, bytes]:
        attributes = [(IFLA_MTU, self.mtu), (IFLA_TXQLEN, self.queue_length)]
        body = IFINFOMSG.pack(socket.AF_UNSPEC, 0, socket.if_nametoindex(self.device), IFF_UP, IFF_UP)
        return RTM_NEWLINK, body + b"".join(number(kind, value) for kind, value in attributes if value is not None)


@dataclass(frozen=True, kw_only=True)
class Address:
    """``ip addr add ADDRESS/32 dev DEVICE``."""

    device: str
    address: IPv4Address

    def encode(self) -> tuple[int, bytes]:
        body = IFADDRMSG.pack(socket.AF_INET, 32, 0, RT_SCOPE_UNIVERSE, socket.if_nametoindex(self.device))
        packed = self.address.packed
        return RTM_NEWADDR, body + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)


@dataclass(frozen=True, kw_only=True)
class Route:
    """``ip route add DESTINATION dev DEVICE src SOURCE``; without a device ``ip route add unreachable DESTINATION``."""

    destination: IPv4Network
    device: str = ""
    source: IPv4Address | None = None

    def encode(self) -> tuple[int, bytes]:
        scope, kind = (RT_SCOPE_LINK, RTN_UNICAST) if self.device else (RT_SCOPE_UNIVERSE, RTN_UNREACHABLE)
        prefix = self.destination.prefixlen
        body = RTMSG.pack(socket.AF_INET, prefix, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, scope, kind, 0)
        if prefix:
            body += attribute(RTA_DST, self.destination.network_address.packed)
        if self.device:
            body += number(RTA_OIF, socket.if_nametoindex(self.device))
        if self.source:
            body += attribute(RTA_PREFSRC, self.source.packed)
        return RTM_NEWROUTE, body


Change = LinkUp | Address | Route


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute of a message. All of ours have a multiple of four bytes, to which the kernel aligns them."""
    return RTATTR.pack(RTATTR.size + len(value), kind) + value


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def apply(changes: Iterable[Change]) -> None:
    """Make all changes; raise at the first that the kernel refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(ANSWER_LIMIT)
        kernel.bind((0, 0))
        for sequence, change in enumerate(changes, 1):
            try:
                request(kernel, sequence, *change.encode())
            except OSError as error:
                raise RuntimeError(f"rtnetlink: {change}: {error.strerror or error}") from None


def request(kernel: socket.socket, sequence: int, kind: int, body: bytes) -> None:
    flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    if kind == RTM_NEWLINK:  # it is there
        flags = NLM_F_REQUEST | NLM_F_ACK
    kernel.send(NLMSGHDR.pack(NLMSGHDR.size + len(body), kind, flags, sequence, 0) + body)
    (negative,) = NLMSGERR.unpack_from(kernel.recv(1 << 16), NLMSGHDR.size)
    if negative:
        raise OSError(-negative, os.strerror(-negative))
