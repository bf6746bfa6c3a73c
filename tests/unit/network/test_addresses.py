"""Which address belongs to whom."""

from __future__ import annotations

import itertools
import random
import re
from ipaddress import IPv4Address, IPv4Network

import pytest

from pinnace.network.addresses import MAX_PODS, USABLE, Ranges, choose, parse, routes

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


def check(ranges: Ranges, nodes: int) -> None:
    """What holds for the ranges of every cluster, however many nodes it has and wherever they are."""
    assert ranges.max_nodes >= nodes
    for one, other in itertools.combinations(ranges.all, 2):
        assert not one.overlaps(other)
    assert all(any(network.subnet_of(usable) for usable in USABLE) for network in ranges.all)
    assert ranges.services.prefixlen >= 12, "the API server takes no larger range"
    assert ranges.dns in ranges.services
    assert ranges.resolver in ranges.nodes
    indices = {*range(min(nodes, 5)), nodes // 2, nodes - 1, ranges.last_index}
    for index in indices:
        pods, address = ranges.pods_of(index), ranges.node(index)
        assert pods.subnet_of(ranges.pods)
        assert 0 < ranges.max_pods <= pods.num_addresses - 4, "network, bridge, broadcast, and one to spare"
        assert address in ranges.nodes
        assert address not in {ranges.resolver, ranges.nodes[0], ranges.nodes[-1]}
        for owned in (address, pods[0], pods[1], pods[-1]):
            assert ranges.owner(int(owned)) == index
    for one, other in itertools.combinations(indices, 2):
        assert not ranges.pods_of(one).overlaps(ranges.pods_of(other))
    assert Ranges.from_json(ranges.to_json()) == ranges


@pytest.mark.parametrize("nodes", [1, 255, 256, 257, 1000, 4000])
def test_there_are_addresses_for_every_number_of_nodes(nodes: int) -> None:
    ranges = choose([], nodes=nodes)
    check(ranges, nodes)
    assert ranges.max_pods == MAX_PODS


def test_clusters_that_ask_for_no_more_hide_no_more_of_the_sites_network() -> None:
    assert choose([], nodes=256) == choose([]) == choose([], nodes=1, joining=250)
    assert [str(network) for network in RANGES.all] == ["10.42.0.0/16", "10.244.0.0/16", "10.96.0.0/16"]


def test_nodes_that_may_join_have_room_too() -> None:
    check(choose([], nodes=10, joining=3000), 3010)


def test_ranges_never_overlap_whatever_the_sites_networks_are() -> None:
    dice = random.Random(18)  # noqa: S311
    for _ in range(200):
        occupied = [
            IPv4Network((int(usable.network_address) | dice.getrandbits(32 - usable.prefixlen), prefix), strict=False)
            for usable in dice.choices(USABLE, k=dice.randrange(12))
            for prefix in [dice.randrange(usable.prefixlen + 1, 33)]
        ]
        nodes = dice.choice([1, 2, 255, 256, 300, 4000])
        try:
            ranges = choose(occupied, nodes=nodes)
        except ValueError:
            assert sum(network.num_addresses for network in occupied) > 1 << 20, "there was room"
            continue
        check(ranges, nodes)
        assert not any(network.overlaps(other) for network in ranges.all for other in occupied)


def test_where_little_is_free_each_node_has_fewer_pods() -> None:
    occupied = [network for network in USABLE if network != IPv4Network("172.16.0.0/12")]
    check(ranges := choose(occupied, nodes=4000), 4000)
    assert ranges.max_pods == 122


def test_a_site_that_uses_everything_is_told_so() -> None:
    with pytest.raises(ValueError, match="no free address range for nodes, in a cluster of up to 256 nodes"):
        choose(USABLE)
    with pytest.raises(ValueError, match="no free address range for pods"):
        choose([network for network in USABLE if network != IPv4Network("192.168.0.0/16")], nodes=4000)


def test_a_cluster_of_an_earlier_version_has_a_24_for_each_node() -> None:
    data = {name: text for name, text in RANGES.to_json().items() if name != "pod_prefix"}
    assert Ranges.from_json(data) == RANGES


@pytest.mark.parametrize("address", ["10.41.255.255", "10.43.0.0", "10.96.0.1", "8.8.8.8", "10.42.0.0"])
def test_other_addresses_have_no_owner(address: str) -> None:
    """Services are kube-proxy's, the outside is nobody's, and the first address of a network is no host's."""
    assert RANGES.owner(int(IPv4Address(address))) is None


def test_fixed_addresses_lie_in_their_ranges() -> None:
    assert RANGES.api in RANGES.services
    assert RANGES.dns in RANGES.services
    assert RANGES.resolver in RANGES.nodes
    assert RANGES.resolver not in {RANGES.node(index) for index in range(1000)}


@pytest.mark.parametrize(
    ("text", "nodes", "room", "pods"),
    [
        ("10.128.0.0/16", 128, 128, 250),
        ("10.128.0.0/16", 129, 256, 122),
        ("10.128.0.0/16", 2000, 2048, 10),
        ("10.0.0.0/8", 2, 32768, 250),
        ("100.64.0.0/11", 4000, 4096, 250),
        ("192.168.4.0/22", 2, 2, 250),
        ("192.168.4.0/22", 3, 4, 122),
        ("172.20.8.0/23", 1, 1, 250),
        ("10.1.0.0/24", 1, 1, 122),
        ("10.1.0.0/24", 8, 8, 10),
        ("10.1.0.64/26", 2, 2, 10),
    ],
)
def test_a_network_of_the_users_is_split_into_the_three_ranges(text: str, nodes: int, room: int, pods: int) -> None:
    ranges = parse(text, nodes=nodes, occupied=[])
    check(ranges, nodes)
    assert (ranges.max_nodes, ranges.max_pods) == (room, pods)
    assert all(network.subnet_of(IPv4Network(text)) for network in ranges.all)


def test_every_network_either_carries_the_nodes_or_is_refused_with_one_that_does() -> None:
    for prefix, nodes in itertools.product(range(8, 31), (1, 2, 3, 16, 255, 256, 4000, 32768, 200000)):
        try:
            check(parse(f"10.0.0.0/{prefix}", nodes=nodes, occupied=[]), nodes)
            continue
        except ValueError as error:
            message = str(error)
        sizes = re.findall(r"/(\d+) \(", message)
        assert sizes or nodes > 100_000
        for size in sizes:
            check(parse(f"10.0.0.0/{size}", nodes=nodes, occupied=[]), nodes)


def test_nodes_that_need_not_join_take_no_more_than_they_may_from_others() -> None:
    assert parse("10.1.0.0/18", nodes=2, joining=100, occupied=[]).capacity == "up to 128 node(s) with 58 pods each"
    assert parse("10.1.0.0/20", nodes=2, joining=100, occupied=[]).capacity == "up to 8 node(s) with 250 pods each"


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
        ("10.1.0.0/27", 1, "too small for 1 node(s); take a /23 (250 pods on each node), or at least a /26 (26 pods)"),
        (
            "10.1.0.0/24",
            9,
            "10.1.0.0/24 is too small for 9 node(s): it has addresses for 8; take a /19 (250 pods on each node), or at "
            "least a /23 (10 pods)",
        ),
        ("10.1.0.0/16", 4000, "take a /11 (250 pods on each node), or at least a /15 (10 pods)"),
        ("10.0.0.0/16", 200000, "no network is large enough for 200000 nodes"),
        ("10.50.0.0/16", 1, "overlaps with 10.50.0.0/24, which this host has a route to"),
    ],
)
def test_a_network_that_will_not_do_is_refused_with_one_that_would(text: str, nodes: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text, nodes=nodes, occupied=[IPv4Network("10.50.0.0/24")])
