"""Which address belongs to whom."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

import pytest

from pinnace.network.addresses import CANDIDATES, Ranges, choose, parse, routes

RANGES = choose([])

# A host with a default route, a local network, a /22, and a route to one host.
TABLE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ib0\t00042A0A\t00000000\t0001\t0\t0\t0\t00FCFFFF\t0\t0\t0
eth0\t0A6433C6\t0100A8C0\t0007\t0\t0\t0\tFFFFFFFF\t0\t0\t0
"""


def test_the_kernels_routes_are_read_without_the_default() -> None:
    assert [str(network) for network in routes(TABLE)] == ["192.168.0.0/24", "10.42.4.0/22", "198.51.100.10/32"]


def test_a_table_without_routes_is_empty() -> None:
    assert routes(TABLE.splitlines()[0]) == []


def test_ranges_shadow_no_network_of_the_site() -> None:
    occupied = [IPv4Network("10.0.0.0/8"), *routes(TABLE)]
    chosen = choose(occupied)
    assert not any(network.overlaps(other) for network in chosen.all for other in occupied)


def test_ranges_do_not_overlap_each_other() -> None:
    first, second, third = RANGES.all
    assert not first.overlaps(second)
    assert not second.overlaps(third)
    assert not first.overlaps(third)


def test_a_site_that_uses_everything_is_told_so() -> None:
    with pytest.raises(ValueError, match="pods"):
        choose([IPv4Network(text) for text in CANDIDATES["pods"]])


@pytest.mark.parametrize("index", [0, 1, 7, 254])
def test_every_address_of_a_node_and_its_pods_is_owned_by_it(index: int) -> None:
    assert RANGES.owner(int(RANGES.node(index))) == index
    pods = RANGES.pods_of(index)
    assert pods.subnet_of(RANGES.pods)
    for address in (pods[0], pods[1], pods[-1]):
        assert RANGES.owner(int(address)) == index


@pytest.mark.parametrize("address", ["10.41.255.255", "10.43.0.0", "10.96.0.1", "8.8.8.8", "10.42.0.0"])
def test_other_addresses_have_no_owner(address: str) -> None:
    """Services are kube-proxy's, the outside is nobody's, and the first address of a network is no host's."""
    assert RANGES.owner(int(IPv4Address(address))) is None


def test_fixed_addresses_lie_in_their_ranges() -> None:
    assert RANGES.api in RANGES.services
    assert RANGES.dns in RANGES.services
    assert RANGES.resolver in RANGES.nodes
    assert RANGES.resolver not in {RANGES.node(index) for index in range(1000)}


def test_ranges_survive_the_clusters_file() -> None:
    assert Ranges.from_json(RANGES.to_json()) == RANGES


@pytest.mark.parametrize(
    ("text", "nodes", "room"),
    [("10.128.0.0/16", 128, 128), ("10.0.0.0/8", 2, 32768), ("192.168.4.0/22", 2, 2), ("172.20.8.0/23", 1, 1)],
)
def test_a_network_of_the_users_is_split_into_the_three_ranges(text: str, nodes: int, room: int) -> None:
    ranges = parse(text, nodes=nodes, occupied=[])
    assert ranges.max_nodes == room
    assert all(network.subnet_of(IPv4Network(text)) for network in ranges.all)
    first, second, third = ranges.all
    assert not first.overlaps(second)
    assert not second.overlaps(third)
    assert not first.overlaps(third)
    assert ranges.services.prefixlen >= 12, "the API server takes no larger range"
    assert ranges.owner(int(ranges.node(nodes - 1))) == nodes - 1
    assert ranges.pods_of(nodes - 1).subnet_of(ranges.pods)
    assert ranges.resolver != ranges.node(nodes - 1)
    assert ranges.dns in ranges.services


@pytest.mark.parametrize(
    ("text", "nodes", "message"),
    [
        ("ten", 1, "'ten' is no IPv4 network such as 10.128.0.0/16"),
        ("fd00::/64", 1, "no IPv4 network"),
        ("10.1.2.3/16", 1, "did you mean 10.1.0.0/16?"),
        ("10.1.0.0", 1, "10.1.0.0 is an address, not a network such as 10.128.0.0/16"),
        ("8.8.0.0/16", 1, "not for private use: take a network within 10.0.0.0/8"),
        ("10.0.0.0/7", 1, "not for private use"),
        ("127.0.0.0/8", 1, "not for private use"),
        ("10.1.0.0/24", 1, "too small for 1 node(s): take a /23"),
        ("10.1.0.0/22", 3, "too small for 3 node(s): take a /21"),
        ("10.1.0.0/16", 129, "take a /15"),
        ("10.50.0.0/16", 1, "overlaps with 10.50.0.0/24, which this host has a route to"),
    ],
)
def test_a_network_that_will_not_do_is_refused_with_one_that_would(text: str, nodes: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text, nodes=nodes, occupied=[IPv4Network("10.50.0.0/24")])
