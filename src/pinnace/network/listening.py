"""Where a node listens on its host: at one address, on ports that the site's firewall lets through."""

from __future__ import annotations

import contextlib
import errno
import random
import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

ROUTES = Path("/proc/net/fib_trie")
LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
EXAMPLE = "40000-40100"


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


def host_address(name: str, network: str = "") -> str:
    """The address at which other hosts reach this one: the one in ``network``, if that is given.

    Otherwise the one that its name resolves to, unless that is loopback; otherwise that of the default route.
    """
    if network:
        own = [address for address in local_addresses(ROUTES.read_text()) if address in IPv4Network(network)]
        if not own:
            raise OSError(errno.EADDRNOTAVAIL, f"this host has no address in {network}, where it is to listen")
        return str(own[0])
    for candidate in (name, socket.gethostname()):
        with contextlib.suppress(OSError):
            for *_, address in socket.getaddrinfo(candidate, None, socket.AF_INET, socket.SOCK_STREAM):
                if not str(address[0]).startswith("127."):
                    return str(address[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the source address
        return str(sock.getsockname()[0])


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
