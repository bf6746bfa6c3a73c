"""Where packets go, by their destination; and a packet that goes from one node's router to another's device."""

from __future__ import annotations

import socket
import struct
import threading
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import pytest

from pinnace.c_library import LibraryError
from pinnace.network import native_packet_loop, router
from pinnace.network.addresses import Ranges, choose, parse
from pinnace.network.links import Discard, Link
from pinnace.network.lookup import Lookup
from pinnace.network.packet_loop import PythonPacketLoop
from pinnace.network.router import Routes
from pinnace.network.tun import VNET_HEADER
from unit.network.loops import KINDS, make_loop

if TYPE_CHECKING:
    from pathlib import Path

SECRET = b"s" * 32
LOOP = PythonPacketLoop([-1])
RANGES = choose([])


@pytest.fixture
def routes() -> Routes:
    return Routes(loop=LOOP, queue=LOOP.queues[0], index=0, ranges=RANGES, secret=SECRET, lookup=Lookup(lambda _: None))


@pytest.mark.parametrize("address", [RANGES.node(3), RANGES.pods_of(3)[9]], ids=["node", "pod"])
def test_addresses_of_a_node_have_one_link(routes: Routes, address: IPv4Address) -> None:
    link = routes.link(int(address))
    assert isinstance(link, Link)
    assert link.peer == 3
    assert routes.link(int(RANGES.node(3))) is link


@pytest.mark.parametrize("address", ["198.51.100.10", "10.1.2.3", str(RANGES.resolver)])
def test_the_outside_and_the_resolver_have_none(routes: Routes, address: str) -> None:
    assert routes.link(int(IPv4Address(address))) is None


def test_addresses_that_no_node_can_have_are_discarded() -> None:
    small = Ranges.within(IPv4Network("10.128.0.0/20"))
    routes = Routes(
        loop=LOOP, queue=LOOP.queues[0], index=0, ranges=small, secret=SECRET, lookup=Lookup(lambda _: None)
    )
    assert isinstance(routes.link(int(small.node(small.last_index + 1))), Discard)
    assert isinstance(routes.link(int(small.node(small.last_index))), Link)


def packet_to(address: IPv4Address, payload: bytes) -> bytes:
    return bytes(VNET_HEADER) + bytes([4 << 4]) + bytes(15) + struct.pack("!I", int(address)) + payload


def start_node(
    kind: str, index: int, published: dict[int, tuple[str, int]], queues: int, ranges: Ranges = RANGES
) -> list[socket.socket]:
    """A router. Returns the other ends of what stands for its TUN queues."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(queues)]
    listener = socket.create_server(("127.0.0.1", 0))
    published[index] = listener.getsockname()
    node = {"index": index, "address": "127.0.0.1", "ranges": ranges, "find": published.get}
    node |= {"name_servers": [], "on_stop": lambda: None}
    args = (make_loop(kind, *(tun.detach() for _, tun in pairs), ranges=ranges), listener, SECRET)
    threading.Thread(target=router.run, args=args, kwargs=node, daemon=True).start()
    for device, _ in pairs:
        device.settimeout(10)
    return [device for device, _ in pairs]


@pytest.mark.parametrize("kinds", [("python", "python"), ("native", "native"), ("native", "python")])
def test_a_packet_reaches_the_queue_of_the_same_number_of_another_node(kinds: tuple[str, str]) -> None:
    """A node with fewer queues takes what is for the others into those that it has."""
    published: dict[int, tuple[str, int]] = {}
    first, second = (start_node(kind, index, published, 3 - index) for index, kind in enumerate(kinds))
    for number in (0, 1, 2, 0):
        packet = packet_to(RANGES.pods_of(1)[9], b"to queue %d" % number)
        first[number].send(packet)
        assert second[number % 2].recv(999) == packet
    answer = packet_to(RANGES.node(0), b"answer")
    second[1].send(answer)
    assert first[1].recv(999) == answer
    for device in (*first, *second):
        device.detach()  # the routers run for as long as this process lives


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", ["10.0.0.0/8", "10.128.0.0/14"], ids=["a /24 each", "a /27 each"])
def test_nodes_with_high_indices_are_reached_as_others(kind: str, network: str) -> None:
    """Two of them are in the same place of the table of links."""
    ranges = parse(network, nodes=4000, occupied=[])
    published: dict[int, tuple[str, int]] = {}
    indices = (0, 300, 812, 3999)
    first, *others = (start_node(kind, index, published, 1, ranges)[0] for index in indices)
    for repetition in range(3):
        for index, device in zip(indices[1:], others, strict=True):
            for address in (ranges.pods_of(index)[1], ranges.pods_of(index)[-2], ranges.node(index)):
                packet = packet_to(address, b"%d to %d" % (repetition, index))
                first.send(packet)
                assert device.recv(999) == packet
            answer = packet_to(ranges.node(0), b"from %d" % index)
            device.send(answer)
            assert first.recv(999) == answer
    for device in (first, *others):
        device.detach()


def test_a_pod_that_tries_every_address_leaves_nothing_behind(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are kept for nodes that there are, not for those that there could be."""
    used: set[int] = {7, 200}
    monkeypatch.setattr(Link, "is_used", property(lambda self: self.peer in used))
    kept = [routes.link(int(RANGES.node(index))) for index in used]
    for index in range(1, RANGES.max_nodes):
        routes.link(int(RANGES.pods_of(index)[9]))
    assert len(routes._links) <= router.MIN_LINKS
    assert [routes.link(int(RANGES.node(index))) for index in used] == kept


@pytest.mark.parametrize("kind", KINDS)
def test_which_loop_is_used_is_said(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_loop(kind)
    monkeypatch.setenv(router.LOOP_VARIABLE, kind)
    said: list[str] = []
    loop = router.packet_loop([7, 8], RANGES, said.append)
    assert len(loop.queues) == 2
    expected = {"python": "packet loop: Python, 2 queue(s): $PINNACE_PACKET_LOOP asks for it"}
    assert said == [expected.get(kind, "packet loop: C, 2 queue(s)")]


def test_a_library_that_cannot_be_used_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that was built from another source, or is none."""
    monkeypatch.delenv(router.LOOP_VARIABLE, raising=False)
    (tmp_path / "packets.c").write_text("something newer")
    monkeypatch.setattr(native_packet_loop, "SOURCES", tmp_path)
    said: list[str] = []
    assert isinstance(router.packet_loop([7], RANGES, said.append), PythonPacketLoop)
    with pytest.raises(LibraryError):
        native_packet_loop.load(tmp_path / "packets.c")
    assert said[0].startswith("packet loop: Python, 1 queue(s): ")
