"""The address plan of a cluster: pure functions over its ranges.

A node's index decides its addresses, so there is no address allocation:

    nodes     10.42.0.0/16     node 0 is 10.42.0.1, node 1 is 10.42.0.2, …
    pods      10.244.0.0/16    node 0 has 10.244.0.0/24, node 1 has 10.244.1.0/24, …
    services  10.96.0.0/16     .0.1 is the API, .0.10 is DNS
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CANDIDATES = {
    "nodes": ("10.42.0.0/16", "172.30.0.0/16", "192.168.192.0/18"),
    "pods": ("10.244.0.0/16", "10.208.0.0/16", "172.28.0.0/16", "100.64.0.0/16"),
    "services": ("10.96.0.0/16", "10.112.0.0/16", "172.29.0.0/16", "100.80.0.0/16"),
}

# RFC 1918, and the shared address space of RFC 6598.
USABLE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))

EXAMPLE = "10.128.0.0/16"


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The address ranges of a cluster."""

    nodes: IPv4Network
    pods: IPv4Network
    services: IPv4Network

    @staticmethod
    def within(network: IPv4Network) -> Ranges:
        """All three from one network: its first half for pods, a quarter each for Services and nodes."""
        pods, rest = network.subnets()
        services, nodes = (next(part.subnets(new_prefix=max(part.prefixlen, 16))) for part in rest.subnets())
        return Ranges(nodes=nodes, pods=pods, services=services)

    @property
    def max_nodes(self) -> int:
        """How many nodes there are addresses for: each has a /24 of pods."""
        return 1 << max(0, 24 - self.pods.prefixlen)

    @property
    def api(self) -> IPv4Address:
        return self.services[1]

    @property
    def dns(self) -> IPv4Address:
        return self.services[10]

    @property
    def resolver(self) -> IPv4Address:
        """An address that belongs to no node: queries sent there reach the host's own name servers."""
        return self.nodes[-2]

    @property
    def all(self) -> tuple[IPv4Network, ...]:
        return self.nodes, self.pods, self.services

    @property
    def last_index(self) -> int:
        """The highest index that a node can have."""
        return min(self.pods.num_addresses >> 8, self.nodes.num_addresses - 3) - 1

    def node(self, index: int) -> IPv4Address:
        return self.nodes[index + 1]

    def pods_of(self, index: int) -> IPv4Network:
        return IPv4Network((int(self.pods.network_address) + (index << 8), 24))

    def owner(self, address: int) -> int | None:
        """The index of the node that has an address; None for an address outside the cluster."""
        if address in _Span(self.pods):
            return (address - int(self.pods.network_address)) >> 8
        if address in _Span(self.nodes) and address != int(self.nodes.network_address):
            return address - int(self.nodes.network_address) - 1
        return None

    def is_outside(self, address: IPv4Address) -> bool:
        """Whether an address is outside the fabric, and neither loopback, link-local nor multicast."""
        own = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
        return not own and not any(address in network for network in self.all)

    def to_json(self) -> dict[str, str]:
        return {"nodes": str(self.nodes), "pods": str(self.pods), "services": str(self.services)}

    @staticmethod
    def from_json(data: dict[str, str]) -> Ranges:
        return Ranges(**{name: IPv4Network(data[name]) for name in ("nodes", "pods", "services")})


class _Span:
    """Containment test for addresses as integers, as they are in packets."""

    def __init__(self, network: IPv4Network) -> None:
        self.first = int(network.network_address)
        self.last = int(network.broadcast_address)

    def __contains__(self, address: int) -> bool:
        return self.first <= address <= self.last


def choose(occupied: Iterable[IPv4Network]) -> Ranges:
    """Choose ranges that overlap with no occupied network; ValueError if there are none left."""
    occupied = list(occupied)
    chosen: dict[str, IPv4Network] = {}
    for purpose, candidates in CANDIDATES.items():
        free = (
            network
            for network in map(IPv4Network, candidates)
            if not any(network.overlaps(other) for other in [*occupied, *chosen.values()])
        )
        try:
            chosen[purpose] = next(free)
        except StopIteration:
            raise ValueError(f"no free address range for {purpose}") from None
    return Ranges(**chosen)


def parse(text: str, *, nodes: int, occupied: Iterable[IPv4Network]) -> Ranges:
    """The ranges within a network that a user names; ValueError says what is wrong with it, and what would be right."""
    try:
        network = IPv4Network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 network such as {EXAMPLE}") from None
    if "/" not in text:
        raise ValueError(f"{text} is an address, not a network such as {EXAMPLE}")
    if text != str(network):
        raise ValueError(f"{text} is no network: did you mean {network}?")
    if not any(network.subnet_of(usable) for usable in USABLE):
        usable = ", ".join(map(str, USABLE))
        raise ValueError(f"{network} is not for private use: take a network within {usable}")
    needed = 23 - max(0, nodes - 1).bit_length()  # its first half has a /24 for each node
    if network.prefixlen > needed:
        raise ValueError(f"{network} is too small for {nodes} node(s): take a /{needed} or a larger one")
    for other in occupied:
        if network.overlaps(other):
            raise ValueError(f"{network} overlaps with {other}, which this host has a route to")
    return Ranges.within(network)


def routes(table: str) -> list[IPv4Network]:
    """The networks of ``/proc/net/route``, without the default route."""
    networks = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 7))
        if mask:
            networks.append(ipaddress.IPv4Network((destination, mask.bit_count())))
    return networks
