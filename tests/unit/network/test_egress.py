"""Packets that we build ourselves, against known vectors; and UDP to the outside through real sockets."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest

from pinnace.network.addresses import choose
from pinnace.network.egress import Egress, checksum, ip_packet, udp_packet
from pinnace.network.links import send_from_queue
from pinnace.network.listening import host_address
from pinnace.network.tun import VNET_HEADER
from unit.network.loops import KINDS, make_loop
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


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A TUN device whose packets to the outside are sent there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.settimeout(5)
    loop = make_loop(request.param, theirs.detach())
    egress = Egress(RANGES, [], loop.udp_flows)
    args = (loop.queues[0], lambda _destination: None, egress.send)
    threading.Thread(target=send_from_queue, args=args, daemon=True).start()
    yield ours
    ours.detach()  # the loop runs for as long as this process lives


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A UDP server outside."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind((HERE, 0))
        sock.settimeout(5)
        yield sock


def exchange(device: socket.socket, server: socket.socket, question: bytes, answer: bytes, port: int = 4000) -> bytes:
    """Send from a pod's port to the server, and back. Returns the packet that the device gets."""
    at = int(IPv4Address(HERE)), server.getsockname()[1]
    device.send(bytes(VNET_HEADER) + udp_packet((POD, port), at, question))
    data, peer = server.recvfrom(65536)
    assert data == question
    server.sendto(answer, peer)
    return device.recv(70000)


@pytest.mark.parametrize("size", [0, 1, 200, 65507])
def test_udp_goes_out_and_its_answer_comes_back(device: socket.socket, server: socket.socket, size: int) -> None:
    """The first datagram begins the flow; the second is the same, whoever moves it."""
    payload = os.urandom(size)
    at = int(IPv4Address(HERE)), server.getsockname()[1]
    for _ in range(2):
        answer = exchange(device, server, payload, payload[::-1])
        assert answer == bytes(VNET_HEADER) + udp_packet(at, (POD, 4000), payload[::-1])


def test_many_flows_keep_their_answers_apart(
    device: socket.socket, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there may be at a time: those that have been idle longest make room, and begin again."""
    monkeypatch.setattr("pinnace.network.egress.MAX_FLOWS", 8)
    for port in [*range(4000, 4020), *range(4000, 4020)]:
        answer = exchange(device, server, b"from %d" % port, b"to %d" % port, port)
        assert struct.unpack_from("!H", answer, VNET_HEADER + 22) == (port,)
        assert answer[VNET_HEADER + 28 :] == b"to %d" % port


def test_only_whom_a_flow_is_for_can_answer_it(device: socket.socket, server: socket.socket) -> None:
    exchange(device, server, b"question", b"answer")
    device.send(bytes(VNET_HEADER) + udp_packet((POD, 4000), (int(IPv4Address(HERE)), server.getsockname()[1]), b"?"))
    _, peer = server.recvfrom(99)
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        stranger.bind((HERE, 0))
        stranger.sendto(b"forged", peer)
    server.sendto(b"true", peer)
    assert device.recv(999)[VNET_HEADER + 28 :] == b"true"


def test_malformed_packets_do_no_harm(device: socket.socket, server: socket.socket) -> None:
    """Cut off at every length, as fragments, and with wrong header lengths; within a flow, and outside of one."""
    exchange(device, server, b"begin", b"begun")
    good = bytes(VNET_HEADER) + udp_packet((POD, 4000), (int(IPv4Address(HERE)), server.getsockname()[1]), b"")
    for length in range(1, len(good)):
        device.send(good[:length])
    for at, value in ((0, 0x41), (0, 0x4F), (6, 0x20), (7, 0x01), (9, 0), (9, socket.IPPROTO_ICMP)):
        bad = bytearray(good)
        bad[VNET_HEADER + at] = value
        device.send(bad)
    assert exchange(device, server, b"still", b"there")[-5:] == b"there"


@pytest.mark.parametrize("silent", ["127.0.0.2", "127.0.0.3"], ids=["closed", "silent"])
def test_the_next_name_server_is_asked_when_one_does_not_answer(
    tun_pair: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    ours, tun = tun_pair
    ours.settimeout(0.05)
    monkeypatch.setattr("pinnace.network.egress.NAME_SERVER_TIMEOUT", 0.1)
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as other:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.05)
        port = server.getsockname()[1]
        other.bind(("127.0.0.3", port))
        monkeypatch.setattr("pinnace.network.egress.DNS", port)
        egress = Egress(RANGES, [silent, "127.0.0.1"])
        asked = 0
        for number in range(100):  # from ever new ports, as CoreDNS does, and from one, as a stub resolver
            egress.send(frame(udp_packet((POD, 4000 + number % 2 * number), (RESOLVER, port), b"name?")), tun)
            with contextlib.suppress(TimeoutError):
                _, peer = server.recvfrom(99)
                server.sendto(b"address", peer)
                answer = ours.recv(999)[VNET_HEADER:]
                assert struct.unpack_from("!II", answer, 12) == (RESOLVER, POD)
                asked += 1
                if asked == 20:
                    break
        assert number < 30, "once it has answered, it is asked at once"


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
        egress = Egress(RANGES, ["127.0.0.1"])
        egress.send(frame(udp_packet((POD, 4000), (RESOLVER, port), b"name?")), tun)
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
        egress = Egress(RANGES, ["127.0.0.1"])
        egress.send(frame(udp_packet((POD, 4000), (RESOLVER, server.getsockname()[1]), b"hello?")), tun)
        with pytest.raises(TimeoutError):
            server.recvfrom(99)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "0.0.0.0"])  # noqa: S104
def test_the_hosts_loopback_is_not_outside(tun_pair: tuple[socket.socket, int], address: str) -> None:
    _, tun = tun_pair
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 0))  # noqa: S104
        server.settimeout(0.2)
        egress = Egress(RANGES, [])
        egress.send(
            frame(udp_packet((POD, 4000), (int(IPv4Address(address)), server.getsockname()[1]), b"hello?")), tun
        )
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
    egress = Egress(RANGES, [])
    egress.send(frame(udp_packet((POD, 4000), (LOOPBACK, 9), b"")[:22]), tun)
    egress.send(frame(ip_packet(socket.IPPROTO_ICMP, POD, LOOPBACK, b"")), tun)


def test_a_kernel_that_watches_no_more_costs_a_packet_alone(
    tun_pair: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tun = tun_pair
    monkeypatch.setattr(selectors, "DefaultSelector", LimitedSelector)
    egress = Egress(RANGES, [])
    with monkeypatch.context() as limited:
        limited.setattr(LimitedSelector, "full", True)
        egress.send(frame(udp_packet((POD, 4000), (int(IPv4Address(HERE)), 9), b"lost")), tun)
    monkeypatch.setattr("pinnace.network.egress.MAX_FLOWS", 1)  # the next one makes room
    for port in (10, 11):
        egress.send(frame(udp_packet((POD, port), (int(IPv4Address(HERE)), 9), b"sent")), tun)
    assert len(egress._flows) == 1
