"""Where packets go, by their destination; and a packet that goes from one node's router to another's device."""

from __future__ import annotations

import socket
import struct
import threading
from ipaddress import IPv4Address, IPv4Network

import pytest

from pinnace.network import router
from pinnace.network.addresses import Ranges, choose
from pinnace.network.links import Discard, Link
from pinnace.network.lookup import Lookup
from pinnace.network.router import Routes
from pinnace.network.tun import VNET_HEADER

SECRET = b"s" * 32
RANGES = choose([])


@pytest.fixture
def routes() -> Routes:
    return Routes(index=0, ranges=RANGES, secret=SECRET, lookup=Lookup(lambda _: None))


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
    routes = Routes(index=0, ranges=small, secret=SECRET, lookup=Lookup(lambda _: None))
    assert isinstance(routes.link(int(small.node(small.last_index + 1))), Discard)
    assert isinstance(routes.link(int(small.node(small.last_index))), Link)


def test_a_packet_reaches_the_device_of_another_node() -> None:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    published = {index: listener.getsockname() for index, listener in enumerate(listeners)}
    devices = []
    for index, listener in enumerate(listeners):
        ours, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        devices.append(ours)
        node = {"index": index, "address": "127.0.0.1", "ranges": RANGES, "find": published.get}
        node |= {"name_servers": [], "on_stop": lambda: None}
        args = (tun.detach(), listener, SECRET)
        threading.Thread(target=router.run, args=args, kwargs=node, daemon=True).start()
    destination = struct.pack("!I", int(RANGES.pods_of(1)[9]))
    packet = bytes(VNET_HEADER) + bytes([4 << 4]) + bytes(15) + destination + b"payload"
    devices[0].send(packet)
    devices[1].settimeout(10)
    assert devices[1].recv(999) == packet
    for device in devices:
        device.detach()  # the routers run for as long as this process lives
