"""The process that relays TCP connections between the fabric and the outside, on one node."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from pinnace.network.accepting import raise_file_limit
from pinnace.network.egress import DNS
from pinnace.network.netns_sockets import NetnsSockets
from pinnace.network.quota import Quota
from pinnace.network.splice import MAX_HELLOS, Pair, Splicer, by_server_name, original_destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.network.addresses import Ranges

    Target = tuple[socket.socket, tuple[str, int]]

RESERVED_FILES = 256 + MAX_HELLOS  # descriptors that are not for relayed connections
FILES_PER_CONNECTION = 4  # two sockets, and a pipe while there is something to move


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Limits on the connections of each kind. Together they stay below the limit of open files.

    ``strangers`` are connections to the API's port whose TLS server name is not the one in the user's kubeconfig.
    """

    outward: Quota[Pair]
    published: Quota[Pair]
    api: Quota[Pair]
    strangers: Quota[Pair]

    @staticmethod
    def of(files: int) -> Quotas:
        connections = max(64, (files - RESERVED_FILES) // FILES_PER_CONNECTION)
        return Quotas(
            outward=Quota(connections * 40 // 100),
            published=Quota(connections * 35 // 100),
            api=Quota(connections * 20 // 100),
            strangers=Quota(min(256, connections * 5 // 100)),
        )


@dataclass(frozen=True, kw_only=True)
class ProxyAddresses:
    """The addresses in the fabric: of this node, and of the API with the TLS server name that its clients send."""

    ranges: Ranges
    address: str
    api: tuple[str, int]
    api_name: str


def run(
    addresses: ProxyAddresses,
    *,
    egress_listener: int,
    netns_sockets: int,
    api: socket.socket | None,
    published: Sequence[socket.socket],
    name_servers: Sequence[str],
) -> None:
    """Relay for ever.

    ``egress_listener`` is the descriptor of the listener inside the fabric to which outgoing connections are
    redirected; ``netns_sockets`` that of the socket pair over which sockets of the fabric are requested.
    """
    ranges = addresses.ranges
    quotas = Quotas.of(raise_file_limit())
    splicer = Splicer()
    fabric = NetnsSockets(socket.socket(fileno=os.dup(netns_sockets)))

    def to_outside(accepted: socket.socket) -> Target:
        host, port = original_destination(accepted)
        if host == str(ranges.resolver):
            if port != DNS:
                raise OSError("the name server is there for names alone")
            if not name_servers:
                raise OSError("the host has no name server")
            host = name_servers[0]
        elif not ranges.is_outside(IPv4Address(host)):  # it connected to the listener itself and was not redirected
            raise OSError("nobody outside has this address")
        return socket.socket(), (host, port)

    def to_api(_accepted: socket.socket) -> Target:
        return fabric.socket(), addresses.api

    def to_node_port(accepted: socket.socket) -> Target:
        return fabric.socket(), (addresses.address, accepted.getsockname()[1])

    for sock in published:
        splicer.listen(sock, to_node_port, quotas.published)
    splicer.listen(socket.socket(fileno=os.dup(egress_listener)), to_outside, quotas.outward)
    if api:
        splicer.listen_for_tls(api, to_api, by_server_name(addresses.api_name, quotas.api, quotas.strangers))
    splicer.run()
