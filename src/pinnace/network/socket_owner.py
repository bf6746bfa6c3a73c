"""Which user has a TCP socket of this host: what the kernel says to everybody (sock_diag(7), /proc/net/tcp).

So a listener of the loopback interface can serve its own user alone, without a password.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from pinnace.network.rtnetlink import NLM_F_REQUEST, NLMSGHDR

Address = tuple[str, int]

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLMSG_ERROR = 2
REQUEST = struct.Struct("=BBBBI")  # of inet_diag_req_v2: family, protocol, extensions, padding, states
ALL_STATES = 0xFFFFFFFF
NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, whichever socket has the addresses
UID_OFFSET = NLMSGHDR.size + 4 + 48 + 12  # in inet_diag_msg: after states, addresses, and three counters
ANSWER_LIMIT = 5.0  # seconds
ANY = ("0.0.0.0", 0)  # noqa: S104 - of the other side of a listener
TABLE = Path("/proc/net/tcp")
TABLE6 = Path("/proc/net/tcp6")  # has the sockets of programs that reach IPv4 by IPv6, such as Java's
FAMILY = socket.AF_INET
TCP_LISTEN = 10


def owner(local: Address, remote: Address = ANY) -> int | None:
    """The uid that a socket belongs to, by its own address and the other side's; None if there is no such socket.

    Without ``remote`` it is the listener that gets connections to ``local``, also one for all addresses.
    """
    try:
        return _ask_kernel(local, remote)
    except OSError:  # ENOENT is a kernel without inet_diag as well as a socket that is not there
        return _look_up(local, remote)


def _ask_kernel(local: Address, remote: Address) -> int | None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(ANSWER_LIMIT)
        body = REQUEST.pack(FAMILY, socket.IPPROTO_TCP, 0, 0, ALL_STATES) + _addresses(local, remote)
        netlink.send(NLMSGHDR.pack(NLMSGHDR.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + body)
        answer = netlink.recv(8192)
    if NLMSGHDR.unpack_from(answer)[1] != NLMSG_ERROR:
        listening = answer[NLMSGHDR.size + 1] == TCP_LISTEN  # what the kernel finds for a connection that is gone
        return int(struct.unpack_from("=I", answer, UID_OFFSET)[0]) if listening == (remote == ANY) else None
    raise OSError(-struct.unpack_from("=i", answer, NLMSGHDR.size)[0], "sock_diag")


def _addresses(local: Address, remote: Address) -> bytes:
    hosts = (socket.inet_aton(host) + bytes(12) for host, _ in (local, remote))
    return struct.pack("!HH", local[1], remote[1]) + b"".join(hosts) + NO_COOKIE


def _look_up(local: Address, remote: Address) -> int | None:
    for table in (TABLE, TABLE6):
        with contextlib.suppress(FileNotFoundError):  # a host without IPv6
            if (found := find(table.read_text(), local, remote)) is not None:
                return found
    return None


def find(table: str, local: Address, remote: Address) -> int | None:
    """The same from the text of /proc/net/tcp or /proc/net/tcp6."""
    own_names, other_names = _names(local), _names(remote)
    if remote == ANY:
        own_names |= _names((ANY[0], local[1]))
    for line in table.splitlines()[1:]:
        _, own, other, state, *rest = line.split()
        if own in own_names and other in other_names and (int(state, 16) == TCP_LISTEN) == (remote == ANY):
            return int(rest[3])
    return None


def _names(address: Address) -> set[str]:
    """An IPv4 address as both tables write it. That of IPv6 has it mapped, but "all addresses" as IPv6's own."""
    host, port = socket.inet_aton(address[0])[::-1].hex().upper(), f"{address[1]:04X}"
    above = "0" * 16 + ("0" * 8 if address[0] == ANY[0] else "FFFF0000")
    return {f"{host}:{port}", f"{above}{host}:{port}"}
