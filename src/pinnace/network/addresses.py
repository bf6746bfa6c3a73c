"""The address plan of a cluster: pure functions over its ranges.

A node's index decides its addresses, so there is no address allocation:

    nodes     10.42.0.0/16     node 0 is 10.42.0.1, node 1 is 10.42.0.2, …
    pods      10.244.0.0/16    node 0 has 10.244.0.0/24, node 1 has 10.244.1.0/24, …
    services  10.96.0.0/16     .0.1 is the API, .0.10 is DNS

The range of pods is as large as the nodes that a cluster can have need it, and no larger: an address in it cannot be
reached outside. Where there is no room for a /24 for each node, a node has a smaller range (``pod_prefix``).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Where a cluster's ranges are looked for first.
CANDIDATES = {
    "nodes": ("10.42.0.0/16", "172.30.0.0/16", "192.168.192.0/18"),
    "pods": ("10.244.0.0/16", "10.208.0.0/16", "172.28.0.0/16", "100.64.0.0/16"),
    "services": ("10.96.0.0/16", "10.112.0.0/16", "172.29.0.0/16", "100.80.0.0/16"),
}

# Where they are looked for then. Few sites use RFC 6598's range within, so what is large is found there.
POOLS = tuple(map(IPv4Network, ("100.64.0.0/10", "10.128.0.0/9", "172.16.0.0/12", "10.0.0.0/9", "192.168.0.0/16")))

# RFC 1918, and the shared address space of RFC 6598.
USABLE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))

EXAMPLE = "10.128.0.0/16"

DEFAULT_NODES = 256  # that a cluster has room for where it is not asked for more
POD_PREFIXES = range(24, 29)  # of the ranges of a node's pods, the best first
MIN_COMFORTABLE = 26  # the longest of them that is taken for the sake of nodes that may join, and need not
MAX_PODS = 250  # on a node
UNUSED = 6  # addresses of a node's range: network, bridge, broadcast, and some of pods that have just ended
NOT_NODES = 3  # addresses of the nodes' range: network, broadcast, and the resolver's
RANGES = ("nodes", "pods", "services")
SMALLEST = 26  # the longest prefix of a user's network: the tenth of its Services' addresses is DNS's


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The address ranges of a cluster."""

    nodes: IPv4Network
    pods: IPv4Network
    services: IPv4Network
    pod_prefix: int = POD_PREFIXES[0]  # of the part of ``pods`` that each node has

    @staticmethod
    def within(network: IPv4Network, pod_prefix: int = POD_PREFIXES[0]) -> Ranges:
        """All three from one network: its first half for pods, a quarter each for Services and nodes."""
        pods, rest = network.subnets()
        services, nodes = (next(part.subnets(new_prefix=max(part.prefixlen, 16))) for part in rest.subnets())
        return Ranges(nodes=nodes, pods=pods, services=services, pod_prefix=pod_prefix)

    @property
    def max_nodes(self) -> int:
        """How many nodes there are addresses for."""
        return min(self.pods.num_addresses >> self.pod_bits, self.nodes.num_addresses - NOT_NODES)

    @property
    def max_pods(self) -> int:
        """How many pods a node can have."""
        return min(MAX_PODS, (1 << self.pod_bits) - UNUSED)

    @property
    def pod_bits(self) -> int:
        """The bits of an address that tell the pods of a node apart."""
        return 32 - self.pod_prefix

    @property
    def capacity(self) -> str:
        """For users: what fits."""
        return f"up to {self.max_nodes} node(s) with {self.max_pods} pods each"

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
        return self.max_nodes - 1

    def node(self, index: int) -> IPv4Address:
        return self.nodes[index + 1]

    def pods_of(self, index: int) -> IPv4Network:
        return IPv4Network((int(self.pods.network_address) + (index << self.pod_bits), self.pod_prefix))

    def owner(self, address: int) -> int | None:
        """The index of the node that has an address; None for an address outside the cluster."""
        if address in _Span(self.pods):
            return (address - int(self.pods.network_address)) >> self.pod_bits
        if address in _Span(self.nodes) and address != int(self.nodes.network_address):
            return address - int(self.nodes.network_address) - 1
        return None

    def is_outside(self, address: IPv4Address) -> bool:
        """Whether an address is outside the fabric, and neither loopback, link-local nor multicast."""
        own = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
        return not own and not any(address in network for network in self.all)

    def to_json(self) -> dict[str, Any]:
        return {name: str(getattr(self, name)) for name in RANGES} | {"pod_prefix": self.pod_prefix}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Ranges:
        return Ranges(
            **{name: IPv4Network(data[name]) for name in RANGES}, pod_prefix=data.get("pod_prefix", POD_PREFIXES[0])
        )


class _Span:
    """Containment test for addresses as integers, as they are in packets."""

    def __init__(self, network: IPv4Network) -> None:
        self.first = int(network.network_address)
        self.last = int(network.broadcast_address)

    def __contains__(self, address: int) -> bool:
        return self.first <= address <= self.last


def choose(occupied: Iterable[IPv4Network], *, nodes: int = 1, joining: int = 0) -> Ranges:
    """Choose ranges that overlap with no occupied network; ValueError if there are none left.

    There are addresses for ``nodes`` nodes, and for so many more that may join.
    """
    taken = list(occupied)
    room = max(DEFAULT_NODES, nodes + joining)

    def take(purpose: str, *prefixes: int) -> IPv4Network | None:
        found = _find(purpose, prefixes, taken)
        if found:
            taken.append(found)
        return found

    nodes_prefix = 32 - (room + NOT_NODES - 1).bit_length()
    node_range = take("nodes", nodes_prefix)
    for pod_prefix in POD_PREFIXES:
        pods_prefix = pod_prefix - (room - 1).bit_length()
        if pod_range := take("pods", pods_prefix):
            break
    service_range = take("services", *range(16, 21))
    missing = [name for name, found in zip(RANGES, (node_range, pod_range, service_range), strict=True) if not found]
    if not (node_range and pod_range and service_range):
        raise ValueError(f"no free address range for {missing[0]}, in a cluster of up to {room} nodes")
    return Ranges(nodes=node_range, pods=pod_range, services=service_range, pod_prefix=pod_prefix)


def _find(purpose: str, prefixes: Sequence[int], taken: Sequence[IPv4Network]) -> IPv4Network | None:
    """A network that overlaps with nothing, with the first of these prefixes for which there is one."""
    for candidate in map(IPv4Network, CANDIDATES[purpose]):
        if candidate.prefixlen <= prefixes[0] and not _overlapping(candidate, taken):
            return candidate
    found = (_part(pool, prefix, taken) for prefix in prefixes for pool in POOLS if pool.prefixlen <= prefix)
    return next(filter(None, found), None)


def _part(pool: IPv4Network, prefix: int, taken: Sequence[IPv4Network]) -> IPv4Network | None:
    """The first part of a pool, with such a prefix, that overlaps with nothing."""
    overlapping = [other for other in taken if pool.overlaps(other)]
    if not overlapping:
        return next(pool.subnets(new_prefix=prefix))
    if pool.prefixlen == prefix or any(pool.subnet_of(other) for other in overlapping):
        return None
    return next(filter(None, (_part(half, prefix, overlapping) for half in pool.subnets())), None)


def _overlapping(network: IPv4Network, others: Iterable[IPv4Network]) -> IPv4Network | None:
    return next((other for other in others if network.overlaps(other)), None)


def parse(text: str, *, nodes: int, occupied: Iterable[IPv4Network], joining: int = 0) -> Ranges:
    """The ranges within a network that a user names; ValueError says what is wrong with it, and what would be right.

    It must have room for ``nodes``; nodes that may join have it if no node gets few addresses for it.
    """
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
    ranges = _divide(network, nodes=nodes, joining=joining)
    if not ranges:
        raise ValueError(_too_small(network, nodes))
    if other := _overlapping(network, occupied):
        raise ValueError(f"{network} overlaps with {other}, which this host has a route to")
    return ranges


def _divide(network: IPv4Network, *, nodes: int, joining: int) -> Ranges | None:
    """A network's ranges, with the most pods for each node that leave room for all nodes; None if it has none."""
    if network.prefixlen > SMALLEST:
        return None
    plans = [Ranges.within(network, pod_prefix) for pod_prefix in POD_PREFIXES]
    comfortable = (
        plan for plan in plans if plan.pod_prefix <= MIN_COMFORTABLE and plan.max_nodes >= nodes + joining
    )  # fmt: skip
    return next(comfortable, None) or next((plan for plan in plans if plan.max_nodes >= nodes), None)


def _too_small(network: IPv4Network, nodes: int) -> str:
    """What to say of a network that is: what it can carry, and which sizes would do."""
    sizes = [IPv4Network((0, prefix)) for prefix in range(SMALLEST, 7, -1)]
    fitting = [plan for size in sizes if (plan := _divide(size, nodes=nodes, joining=0))]
    if not fitting:
        return f"no network is large enough for {nodes} nodes"
    least, best = fitting[0], next((plan for plan in fitting if plan.max_pods == MAX_PODS), fitting[-1])
    carries = ""
    if network.prefixlen <= SMALLEST:
        carries = f": it has addresses for {Ranges.within(network, POD_PREFIXES[-1]).max_nodes}"
    advice = f"take a /{best.pods.prefixlen - 1} ({best.max_pods} pods on each node)"
    if least != best:
        advice += f", or at least a /{least.pods.prefixlen - 1} ({least.max_pods} pods)"
    return f"{network} is too small for {nodes} node(s){carries}; {advice}"


def routes(table: str) -> list[IPv4Network]:
    """The networks of ``/proc/net/route``, without the default route."""
    networks = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 7))
        if mask:
            networks.append(ipaddress.IPv4Network((destination, mask.bit_count())))
    return networks
