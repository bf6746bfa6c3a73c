"""The process that joins TCP connections across the border of the fabric, on one node."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from pinnace.network.accepting import raise_file_limit
from pinnace.network.egress import DNS
from pinnace.network.netns_sockets import Door
from pinnace.network.quota import Quota
from pinnace.network.splice import MOST_GREETING, Pair, Splicer, by_server_name, original_destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.network.addresses import Ranges

    Target = tuple[socket.socket, tuple[str, int]]

RESERVE = 256 + MOST_GREETING  # descriptors that are not for joined connections
FILES_PER_CONNECTION = 4  # two sockets, and a pipe while there is something to move


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """How many connections of each kind there may be: so many that together they stay below the limit of files.

    ``strangers`` are those at the API's port who do not ask for the name that the user's kubeconfig has.
    """

    outward: Quota[Pair]
    published: Quota[Pair]
    api: Quota[Pair]
    strangers: Quota[Pair]

    @staticmethod
    def of(files: int) -> Quotas:
        connections = max(64, (files - RESERVE) // FILES_PER_CONNECTION)
        return Quotas(
            outward=Quota(connections * 40 // 100),
            published=Quota(connections * 35 // 100),
            api=Quota(connections * 20 // 100),
            strangers=Quota(min(256, connections * 5 // 100)),
        )


@dataclass(frozen=True, kw_only=True)
class Inside:
    """Where a node is in the fabric, and where the API is: that is found by the name that its clients ask for."""

    ranges: Ranges
    address: str
    api: tuple[str, int]
    api_name: str


def run(
    inside: Inside,
    *,
    way_out: int,
    door: int,
    api: socket.socket | None,
    published: Sequence[socket.socket],
    name_servers: Sequence[str],
) -> None:
    """For ever. ``way_out`` is the listener inside to which what leaves the fabric is redirected."""
    ranges = inside.ranges
    quotas = Quotas.of(raise_file_limit())
    splicer = Splicer()
    inward = Door(socket.socket(fileno=os.dup(door)))

    def to_outside(accepted: socket.socket) -> Target:
        host, port = original_destination(accepted)
        if host == str(ranges.resolver):
            if port != DNS:
                raise OSError("the name server is there for names alone")
            if not name_servers:
                raise OSError("the host has no name server")
            host = name_servers[0]
        elif not ranges.is_outside(IPv4Address(host)):  # who asks has come here directly, and not on the way out
            raise OSError("nobody outside has this address")
        return socket.socket(), (host, port)

    def to_api(_accepted: socket.socket) -> Target:
        return inward.socket(), inside.api

    def to_node_port(accepted: socket.socket) -> Target:
        return inward.socket(), (inside.address, accepted.getsockname()[1])

    for sock in published:
        splicer.listen(sock, to_node_port, quotas.published)
    splicer.listen(socket.socket(fileno=os.dup(way_out)), to_outside, quotas.outward)
    if api:
        splicer.listen_for_tls(api, to_api, by_server_name(inside.api_name, quotas.api, quotas.strangers))
    splicer.run()
