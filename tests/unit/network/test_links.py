"""Frames between nodes: they arrive whole, wait for a peer that is late, and survive a peer's restart."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import pytest

from pinnace.network.handshake import Protocol, complete, listener_name, listening
from pinnace.network.links import Link, send_from_queue
from pinnace.network.lookup import Lookup
from pinnace.network.packet_loop import frame_header
from pinnace.network.tun import VNET_HEADER
from testbed.waiting import wait_until
from unit.network.loops import KINDS, make_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinnace.network.packet_loop import PacketLoop

SECRET = b"s" * 32
LIMIT = 10.0

# A node's receiving side, in a process that can be killed. Its standard output is its TUN device.
PEER = """
import ctypes, signal, socket, sys
from pinnace.network.links import serve
from unit.network.loops import make_loop
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive a test that fails
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(listener.getsockname()[1], file=sys.stderr, flush=True)
address, port = listener.getsockname()
loop = make_loop(sys.argv[3], 1)
serve(listener, sys.argv[2].encode(), index=1, address=address, last_index=254, loop=loop, on_stop=lambda: None)
"""


@dataclass(kw_only=True)
class Peer:
    process: subprocess.Popen[bytes]
    address: tuple[str, int]

    @property
    def tun(self) -> IO[bytes]:
        assert self.process.stdout
        return self.process.stdout

    def read(self, size: int) -> bytes:
        """So many bytes that have come out of the device, or what there is after LIMIT."""
        received, deadline = b"", time.monotonic() + LIMIT
        while len(received) < size and select.select([self.tun], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(self.tun.fileno(), size - len(received))
            if not part:
                break
            received += part
        return received

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        assert self.process.stdout
        assert self.process.stderr
        self.process.stdout.close()
        self.process.stderr.close()


def start_peer(port: int = 0, secret: bytes = SECRET, kind: str = "python") -> Peer:
    argv = [sys.executable, "-c", PEER, str(port), secret.decode(), kind]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stderr
    return Peer(process=process, address=("127.0.0.1", int(process.stderr.readline())))


@pytest.fixture(autouse=True)
def _close(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what the links of a test hold: they themselves live as long as their node."""
    made: list[Link] = []
    original = Link.__init__

    def remember(link: Link, *arguments: Any, loop: PacketLoop) -> None:
        made.append(link)
        original(link, *arguments, loop=loop)

    monkeypatch.setattr(Link, "__init__", remember)
    yield
    for link in made:
        link.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Both ends have the same packet loop; ``test_packet_loop`` mixes them."""
    return str(request.param)


@pytest.fixture
def loop(kind: str) -> PacketLoop:
    return make_loop(kind, -1)


@pytest.fixture
def peer(kind: str) -> Iterator[Peer]:
    peer = start_peer(kind=kind)
    yield peer
    peer.kill()


def answer(sock: socket.socket, address: tuple[str, int]) -> None:
    """As node 1 does."""
    complete(sock, listening(SECRET, lambda _index: Protocol.LINKS, listener_name(1, *address)))


def frame(payload: bytes) -> memoryview:
    return memoryview(frame_header(0, len(payload)) + payload)


def arrives(link: Link, peer: Peer, payload: bytes) -> bool:
    """Send a frame again and again until it comes out at the other end, as TCP would."""
    os.set_blocking(peer.tun.fileno(), False)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        link.send(frame(payload))
        time.sleep(0.05)
        if payload in (peer.tun.read() or b""):
            return True
    return False


def test_frames_arrive_in_order_from_the_first_one_on(peer: Peer, loop: PacketLoop) -> None:
    """Those from before the link was made are not lost."""
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: peer.address), loop=loop)
    for number in range(100):
        link.send(frame(f"frame {number:4}".encode()))
    assert peer.read(1000) == b"".join(f"frame {number:4}".encode() for number in range(100))


def test_a_connection_that_is_made_while_a_frame_finds_none_is_kept(
    peer: Peer, loop: PacketLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = loop.queues[0]
    link = Link(queue, 0, 1, SECRET, Lookup(lambda _: peer.address), loop=loop)
    send, connect, connections = queue.send, Link._connect, []

    def count(self: Link, address: tuple[str, int]) -> socket.socket:
        connections.append(address)
        return connect(self, address)

    def find_none(to: int, data: memoryview) -> None:
        try:
            send(to, data)
        except OSError:
            if link.is_used:
                time.sleep(0.5)  # it is connected when we look again
            raise

    monkeypatch.setattr(Link, "_connect", count)
    monkeypatch.setattr(queue, "send", find_none)
    for number in range(3):
        link.send(frame(f"frame {number}".encode()))
    assert peer.read(21) == b"frame 0frame 1frame 2"
    assert len(connections) == 1


def test_a_peer_that_is_late_gets_what_has_waited(loop: PacketLoop) -> None:
    addresses: dict[int, tuple[str, int]] = {}
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(addresses.get), loop=loop)
    link.send(frame(b"early"))
    time.sleep(0.2)
    peer = start_peer()
    addresses[1] = peer.address
    assert peer.read(5) == b"early"
    peer.kill()


def test_large_frames_arrive_whole(peer: Peer, loop: PacketLoop) -> None:
    """More at once than fits the sockets: the link holds the sender up, and never cuts a frame."""
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: peer.address), loop=loop)
    assert arrives(link, peer, b"first")
    os.set_blocking(peer.tun.fileno(), True)
    payload = os.urandom(60_000)

    def send() -> None:
        for _ in range(200):
            link.send(frame(payload))

    sender = threading.Thread(target=send)
    sender.start()
    received = peer.read(100 * len(payload))
    assert len(received) == 100 * len(payload)
    assert all(received[n : n + len(payload)] == payload for n in range(0, len(received), len(payload)))
    draining = threading.Thread(target=peer.read, args=(100 * len(payload),))
    draining.start()
    sender.join(LIMIT)
    draining.join(LIMIT)
    assert not draining.is_alive()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_link_is_made_again_after_the_peer_restarts(loop: PacketLoop, *, elsewhere: bool) -> None:
    """At the same port, as when its helper died; at another, as when its node did."""
    peer = start_peer()
    address = peer.address
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: address), loop=loop)
    assert arrives(link, peer, b"before")
    peer.kill()
    for _ in range(5):
        link.send(frame(b"lost"))
        time.sleep(0.02)
    peer = start_peer(0 if elsewhere else address[1])
    address = peer.address
    assert arrives(link, peer, b"after")
    peer.kill()


def test_frames_that_come_while_a_link_is_begun_go_over_that_link(loop: PacketLoop) -> None:
    """The peer is slow at first, so that much waits for it, and takes a while to be sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    address = listener.getsockname()
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: address), loop=loop)
    taken: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            taken.append(sock)
            threading.Thread(target=read, args=(sock,)).start()

    def read(sock: socket.socket) -> None:
        time.sleep(0.1)
        answer(sock, address)
        time.sleep(0.1)
        while sock.recv(1 << 20):
            pass
        sock.close()

    thread = threading.Thread(target=take)
    thread.start()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        link.send(frame(bytes(60_000)))
        time.sleep(0.0005)
    assert len(taken) == 1, "no second connection"
    link.close()
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(LIMIT)
    listener.close()


def test_a_peer_that_dies_while_frames_wait_for_it_does_not_end_the_link(loop: PacketLoop) -> None:
    """It takes the handshake and is gone before it has read anything."""
    silent = socket.create_server(("127.0.0.1", 0))
    address = silent.getsockname()
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: address), loop=loop)

    def hang_up() -> None:
        sock, _ = silent.accept()
        answer(sock, address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    for _ in range(100):
        link.send(frame(bytes(10_000)))
    thread.join(LIMIT)
    silent.close()
    peer = start_peer()
    address = peer.address
    assert arrives(link, peer, b"after")
    peer.kill()


def test_a_peer_that_dies_while_the_link_is_full_does_not_end_the_sender(loop: PacketLoop) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: address), loop=loop)
    link.send(frame(b"first"))
    sock, _ = listener.accept()
    answer(sock, address)
    assert sock.recv(99)
    time.sleep(0.1)

    def break_off() -> None:
        time.sleep(0.3)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    thread = threading.Thread(target=break_off)
    thread.start()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        link.send(frame(bytes(60_000)))
    thread.join(LIMIT)
    listener.close()


def test_what_the_peer_sends_over_our_connection_reaches_the_device(kind: str) -> None:
    device, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    device.settimeout(LIMIT)
    loop = make_loop(kind, tun.fileno())
    with socket.create_server(("127.0.0.1", 0)) as listener, device, tun:
        address = listener.getsockname()
        link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: address), loop=loop)
        link.send(frame(b"question"))
        sock, _ = listener.accept()
        with sock:
            answer(sock, address)
            assert sock.recv(99) == bytes(frame(b"question"))
            sock.sendall(frame(b"answer"))
            assert device.recv(99) == b"answer"
        wait_until("its end", lambda: not link.is_used, limit=LIMIT)


def test_a_stranger_gets_no_frame_through(loop: PacketLoop) -> None:
    peer = start_peer(secret=b"x" * 32)
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: peer.address), loop=loop)
    for _ in range(10):
        link.send(frame(b"secret"))
        time.sleep(0.02)
    peer.process.kill()
    assert peer.tun.read() == b""
    peer.kill()


def test_packets_from_the_device_go_by_their_destination(peer: Peer, kind: str) -> None:
    device, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    loop = make_loop(kind, tun.detach())
    link = Link(loop.queues[0], 0, 1, SECRET, Lookup(lambda _: peer.address), loop=loop)
    others: list[bytes] = []
    threading.Thread(
        target=send_from_queue,
        args=(loop.queues[0], {1: link}.get, lambda packet, _tun: others.append(bytes(packet))),
        daemon=True,
    ).start()
    to_peer, to_outside, ipv6 = (
        bytes(VNET_HEADER) + bytes([version << 4]) + bytes(15) + struct.pack("!I", destination) + b"payload"
        for version, destination in ((4, 1), (4, 2), (6, 1))
    )
    for packet in (ipv6, to_outside[:29], to_outside, to_peer):
        device.send(packet)
    assert peer.read(len(to_peer)) == to_peer
    assert others == [to_outside]
    device.detach()
