"""Where a node listens on its host: at one address, on ports that the site's firewall lets through."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import random
import re
import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

ROUTES = Path("/proc/net/fib_trie")
LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
EXAMPLE = "40000-40100"
INTERFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")  # IFNAMSIZ
SIOCGIFADDR = 0x8915


@dataclass(frozen=True, kw_only=True)
class PortRange:
    """A range of ports; the last is included."""

    first: int
    last: int

    @staticmethod
    def parse(text: str) -> PortRange:
        """Parse what a user writes; ValueError says what is wrong with it."""
        first, _, last = text.partition("-")
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"{text!r} is no range of ports such as {EXAMPLE}")
        made = PortRange(first=int(first), last=int(last))
        if not 1024 <= made.first <= made.last <= 65535:
            raise ValueError(f"{text}: a range goes up, and lies within 1024-65535, as {EXAMPLE} does")
        return made

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def local_addresses(table: str) -> list[IPv4Address]:
    """The addresses of this host, from the text of /proc/net/fib_trie."""
    return sorted({IPv4Address(address) for address in LOCAL.findall(table)})


def host_address(name: str, network: str = "", interface: str = "") -> str:
    """The address at which other hosts reach this one: that in ``network`` or of ``interface``, if one is given.

    Otherwise the one that its name resolves to, if the host has it and it is not loopback; otherwise that of the
    default route.
    """
    if interface:
        return interface_address(interface)
    known = local_addresses(ROUTES.read_text())
    if network:
        own = [address for address in known if address in IPv4Network(network)]
        if not own:
            raise OSError(errno.EADDRNOTAVAIL, f"this host has no address in {network}, where it is to listen")
        return str(own[0])
    for candidate in (name, socket.gethostname()):
        with contextlib.suppress(OSError):
            for *_, found in socket.getaddrinfo(candidate, None, socket.AF_INET, socket.SOCK_STREAM):
                address = IPv4Address(str(found[0]))
                if address in known and not address.is_loopback:
                    return str(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the source address
        return str(sock.getsockname()[0])


def interface_address(name: str) -> str:
    """The address of a network device of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            there = ", ".join(device for _, device in socket.if_nameindex() if device != "lo") or "none"
            raise OSError(
                error.errno, f"this host has no device {name} with an address, where it is to listen; it has {there}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


def interface_of(address: str) -> str:
    """The network device that has an address of this host; empty if none does."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            if interface_address(name) == address:
                return name
    return ""


def bind(address: str, ports: PortRange | None, backlog: int) -> socket.socket:
    """Listen on a free port: any, or one of the range.

    Ports are tried in random order: other users' programs and our own nodes on this host look for free ports too.
    """
    if ports is None:
        return socket.create_server((address, 0), backlog=backlog)
    numbers = list(range(ports.first, ports.last + 1))
    random.shuffle(numbers)
    for number in numbers:
        try:
            return socket.create_server((address, number), backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port of {ports} is free at {address}; give a larger range with --ports")
