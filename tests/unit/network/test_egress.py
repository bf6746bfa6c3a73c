"""Packets that we build ourselves, against known vectors; and UDP to the outside through real sockets."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest

from pinnace.network.addresses import choose
from pinnace.network.egress import Egress, checksum, ip_packet, udp_packet
from pinnace.network.listening import host_address
from pinnace.network.tun import VNET_HEADER
from unit.network.selecting import LimitedSelector

if TYPE_CHECKING:
    from collections.abc import Iterator

POD = int(IPv4Address("10.244.0.9"))
LOOPBACK = int(IPv4Address("127.0.0.1"))
RANGES = choose([])
RESOLVER = int(RANGES.resolver)
HERE = host_address(socket.gethostname())


def test_the_checksum_of_rfc_1071() -> None:
    data = bytes.fromhex("0001f203f4f5f6f7")
    assert checksum(data) == 0x220D
    assert checksum(data + struct.pack("!H", checksum(data))) == 0


def test_the_checksum_of_an_odd_length_is_padded() -> None:
    assert checksum(b"\x01") == checksum(b"\x01\x00")


def test_an_ip_header_as_others_compute_it() -> None:
    """The textbook header: 115 bytes of UDP from 192.168.0.1 to 192.168.0.199, TTL 64, not to be fragmented."""
    source, destination = int(IPv4Address("192.168.0.1")), int(IPv4Address("192.168.0.199"))
    packet = ip_packet(socket.IPPROTO_UDP, source, destination, bytes(95))
    assert packet[:20].hex() == "45000073000040004011b861c0a80001c0a800c7"
    assert len(packet) == 115


def test_a_udp_packet_has_ports_length_and_payload() -> None:
    packet = udp_packet((POD, 53), (LOOPBACK, 4000), b"answer")
    assert checksum(packet[:20]) == 0
    assert struct.unpack_from("!HHHH", packet, 20) == (53, 4000, 14, 0)
    assert packet[28:] == b"answer"


@pytest.fixture
def tun_pair() -> Iterator[tuple[socket.socket, int]]:
    """What stands for the TUN device: packets written to one end come out of the other as they were."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.settimeout(5)
    yield ours, theirs.fileno()
    with contextlib.suppress(OSError):
        ours.close()
    os.dup2(os.open(os.devnull, os.O_RDWR), theirs.detach())  # the receiving thread may still write to it


def frame(packet: bytes) -> memoryview:
    return memoryview(bytes(VNET_HEADER) + packet)


def test_udp_goes_out_and_its_answer_comes_back(tun_pair: tuple[socket.socket, int]) -> None:
    ours, tun = tun_pair
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind((HERE, 0))
        server.settimeout(5)
        port = server.getsockname()[1]
        Egress(tun, RANGES, list).send(frame(udp_packet((POD, 4000), (int(IPv4Address(HERE)), port), b"question")))
        data, peer = server.recvfrom(99)
        assert data == b"question"
        server.sendto(b"answer", peer)
        answer = ours.recv(999)[VNET_HEADER:]
    assert struct.unpack_from("!II", answer, 12) == (int(IPv4Address(HERE)), POD)
    assert struct.unpack_from("!HH", answer, 20) == (port, 4000)
    assert answer[28:] == b"answer"


def test_the_resolvers_address_leads_to_the_hosts_name_server(
    tun_pair: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes from the address that was asked, or the pod would not take it."""
    ours, tun = tun_pair
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        port = server.getsockname()[1]
        monkeypatch.setattr("pinnace.network.egress.DNS", port)
        egress = Egress(tun, RANGES, lambda: ["127.0.0.1"])
        egress.send(frame(udp_packet((POD, 4000), (RESOLVER, port), b"name?")))
        _, peer = server.recvfrom(99)
        server.sendto(b"address", peer)
        answer = ours.recv(999)[VNET_HEADER:]
    assert struct.unpack_from("!II", answer, 12) == (RESOLVER, POD)


def test_the_resolvers_address_leads_to_nothing_but_names(tun_pair: tuple[socket.socket, int]) -> None:
    """A host's name server is often on its loopback, and so are services that pods must not reach."""
    _, tun = tun_pair
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.3)
        egress = Egress(tun, RANGES, lambda: ["127.0.0.1"])
        egress.send(frame(udp_packet((POD, 4000), (RESOLVER, server.getsockname()[1]), b"hello?")))
        with pytest.raises(TimeoutError):
            server.recvfrom(99)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "0.0.0.0"])  # noqa: S104
def test_the_hosts_loopback_is_not_outside(tun_pair: tuple[socket.socket, int], address: str) -> None:
    _, tun = tun_pair
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 0))  # noqa: S104
        server.settimeout(0.2)
        egress = Egress(tun, RANGES, list)
        egress.send(frame(udp_packet((POD, 4000), (int(IPv4Address(address)), server.getsockname()[1]), b"hello?")))
        with pytest.raises(TimeoutError):
            server.recvfrom(99)


@pytest.mark.parametrize(
    ("address", "outside"),
    [
        ("198.51.100.10", True),
        ("10.1.2.3", True),
        ("169.254.169.254", False),
        ("10.42.7.7", False),
        ("10.96.3.3", False),
        ("10.244.9.9", False),
    ],
)
def test_addresses_of_the_fabric_are_not_outside(address: str, *, outside: bool) -> None:
    assert RANGES.is_outside(IPv4Address(address)) is outside


def test_a_packet_that_is_cut_off_does_no_harm(tun_pair: tuple[socket.socket, int]) -> None:
    _, tun = tun_pair
    egress = Egress(tun, RANGES, list)
    egress.send(frame(udp_packet((POD, 4000), (LOOPBACK, 9), b"")[:22]))
    egress.send(frame(ip_packet(socket.IPPROTO_ICMP, POD, LOOPBACK, b"")))


def test_a_kernel_that_watches_no_more_costs_a_packet_alone(
    tun_pair: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tun = tun_pair
    monkeypatch.setattr(selectors, "DefaultSelector", LimitedSelector)
    egress = Egress(tun, RANGES, list)
    with monkeypatch.context() as limited:
        limited.setattr(LimitedSelector, "full", True)
        egress.send(frame(udp_packet((POD, 4000), (int(IPv4Address(HERE)), 9), b"lost")))
    monkeypatch.setattr("pinnace.network.egress.MAX_FLOWS", 1)  # the next one makes room
    for port in (10, 11):
        egress.send(frame(udp_packet((POD, port), (int(IPv4Address(HERE)), 9), b"sent")))
    assert len(egress._flows) == 1
