"""Both packet loops move the same frames the same way, whatever comes and however it is cut."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest

from pinnace.network import packet_loop
from pinnace.network.handshake import HandshakeError
from pinnace.network.packet_loop import FRAME_HEADER, frame_header
from pinnace.network.tun import MAX_FRAME, VNET_HEADER
from unit.network.loops import KINDS, RANGES, make_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinnace.network.packet_loop import Queue

LIMIT = 10.0
PEER = 3
ADDRESS = int(RANGES.pods_of(PEER)[9])
OUTSIDE = int(IPv4Address("198.51.100.10"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def packet(destination: int, payload: bytes) -> bytes:
    return bytes(VNET_HEADER) + bytes([4 << 4]) + bytes(15) + struct.pack("!I", destination) + payload


def receive_all(sock: socket.socket) -> bytes:
    data = b""
    while chunk := sock.recv(1 << 20):
        data += chunk
    return data


# --- from a peer to the device ----------------------------------------------------------------------------------------


def received(kind: str, chunks: list[bytes]) -> tuple[list[bytes], list[bytes], str]:
    """What two queues of a device get of a connection on which these chunks arrive, and how that ends."""
    ours, theirs = socket.socketpair()
    queues = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    ends: list[str] = []
    got: list[list[bytes]] = [[], []]

    def collect(device: socket.socket, frames: list[bytes]) -> None:
        while frame := device.recv(MAX_FRAME):
            frames.append(frame)

    def receive() -> None:
        try:
            make_loop(kind, *(tun.fileno() for _, tun in queues)).receive(theirs)
            ends.append("closed")
        except HandshakeError as error:
            ends.append(str(error))
        theirs.close()
        for _, tun in queues:
            tun.close()

    threads = [threading.Thread(target=receive)]
    threads += [threading.Thread(target=collect, args=(queues[n][0], got[n])) for n in range(2)]
    for thread in threads:
        thread.start()
    with ours, contextlib.suppress(ConnectionError):
        for chunk in chunks:
            ours.sendall(chunk)
    for thread in threads:
        thread.join(LIMIT)
    for device, _ in queues:
        device.close()
    return got[0], got[1], ends[0]


def cut(stream: bytes, pick: Callable[[], int]) -> list[bytes]:
    """A stream in pieces of random sizes."""
    pieces = []
    while stream:
        size = pick()
        pieces.append(stream[:size])
        stream = stream[size:]
    return pieces


@pytest.mark.parametrize("piece", [(1, 7), (100, 5000), (60_000, 200_000)], ids=["bytes", "kilobytes", "all"])
def test_frames_arrive_whole_however_they_are_cut(kind: str, piece: tuple[int, int]) -> None:
    rng = random.Random(piece[1])  # noqa: S311
    lengths = [1, 2, 3, 4, 5, MAX_FRAME, MAX_FRAME - 1] + [rng.randint(1, 2000) for _ in range(30)]
    lengths = [length for length in lengths if length < 5000 or piece[1] > 10] * 4
    rng.shuffle(lengths)
    frames = [(rng.randint(0, 255), rng.randbytes(length)) for length in lengths]
    stream = b"".join(frame_header(queue, len(data)) + data for queue, data in frames)
    even, odd, end = received(kind, cut(stream, lambda: rng.randint(*piece)))
    assert even == [data for queue, data in frames if queue % 2 == 0]
    assert odd == [data for queue, data in frames if queue % 2 == 1]
    assert end == "closed"


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 0x20000, 0xFFFFFF])
def test_a_frame_of_impossible_length_ends_the_connection(kind: str, length: int) -> None:
    even, odd, end = received(kind, [frame_header(0, 4) + b"good" + frame_header(1, length) + bytes(9)])
    assert (even, odd, end) == ([b"good"], [], "a frame of impossible length")


def test_a_frame_that_is_cut_off_is_dropped(kind: str) -> None:
    stream = frame_header(0, 4) + b"good" + frame_header(0, 4)
    for length in range(1, 8):
        assert received(kind, [(stream + b"bad")[: 8 + length]]) == ([b"good"], [], "closed")


def test_garbage_has_the_same_end_with_both_loops() -> None:
    rng = random.Random(1)  # noqa: S311
    for _ in range(30):
        short = frame_header(rng.randint(0, 255), 9) + rng.randbytes(9)
        garbage = rng.choice([b"", short]) + rng.randbytes(rng.randint(0, 300))
        assert received("python", [garbage]) == received("native", [garbage])


def test_a_device_that_refuses_a_packet_costs_this_packet(kind: str) -> None:
    """As the kernel does with malformed ones: here the device is closed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame_header(0, 3) + b"bad")
        ours.shutdown(socket.SHUT_WR)
        make_loop(kind, -1).receive(theirs)


# --- from the device to a peer ----------------------------------------------------------------------------------------


class Device:
    """A queue with one connected peer, whose packets are sent by a thread."""

    def __init__(self, kind: str) -> None:
        self.device, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.left: list[bytes] = []  # the packets that the loop does not send by itself
        self.queue: Queue = make_loop(kind, -1, -1, tun.detach()).queues[2]
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.queue.connect(PEER, self.ours)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            frame = self.queue.next_frame()
            address: int = packet_loop.destination(frame)
            if RANGES.owner(address) == PEER:
                with contextlib.suppress(OSError):
                    self.queue.send(PEER, frame)
            else:
                self.left.append(bytes(frame))

    def flush(self) -> None:
        """Wait until all packets that were sent into the device have been handled."""
        marker = packet(OUTSIDE, os.urandom(8))
        self.device.send(marker)
        deadline = time.monotonic() + LIMIT
        while not self.left or self.left[-1][FRAME_HEADER.size :] != marker:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        self.left.pop()

    def close(self) -> None:
        self.queue.disconnect(PEER, self.ours)
        for sock in (self.ours, self.theirs):
            sock.close()
        self.device.detach()  # the thread lives as long as this process


@pytest.fixture
def device(kind: str) -> Iterator[Device]:
    device = Device(kind)
    yield device
    device.close()


def test_packets_of_all_lengths_become_frames(device: Device) -> None:
    rng = random.Random(2)  # noqa: S311
    sizes = [0, 1, 200, 4000, 4066, 4067, 9000, 65535 - 20] + [rng.randint(0, 3000) for _ in range(50)]
    expected = b""
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(receive_all(device.theirs)))
    reader.start()
    for size in sizes * 2:
        data = packet(ADDRESS, rng.randbytes(size))
        device.device.send(data)
        expected += frame_header(2, len(data)) + data
    device.flush()
    device.ours.shutdown(socket.SHUT_WR)
    reader.join(LIMIT)
    assert got == [expected]
    assert not device.left


def test_what_is_not_for_the_peer_is_left_to_the_caller(device: Device) -> None:
    """In order, and as it was; what is no IPv4 packet is dropped."""
    others = [int(RANGES.node(5)), int(RANGES.resolver), OUTSIDE, int(RANGES.pods[-1]), int(RANGES.nodes[0])]
    packets = [packet(address, b"payload") for address in others]
    for data in packets:
        for dropped in (b"?", data[:29], data[:10] + b"\x60" + data[11:], packet(ADDRESS, b"for the peer")):
            device.device.send(dropped)
        device.device.send(data)
    device.flush()
    assert device.left == [frame_header(2, len(data)) + data for data in packets]
    assert device.theirs.recv(1 << 16) == (frame_header(2, 42) + packet(ADDRESS, b"for the peer")) * len(packets)


def test_a_peer_that_does_not_read_loses_whole_frames_and_stalls_nobody_for_long(device: Device) -> None:
    data = packet(ADDRESS, os.urandom(30_000))
    begin = time.monotonic()
    for _ in range(100):
        device.device.send(data)
    device.flush()
    assert time.monotonic() - begin < 10 * packet_loop.SEND_TIMEOUT_MS / 1000
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(receive_all(device.theirs)))
    reader.start()
    time.sleep(0.2)
    last = packet(ADDRESS, b"last")
    device.device.send(last)  # sends the rest of a frame that was sent in part, before itself
    device.flush()
    device.ours.shutdown(socket.SHUT_WR)
    reader.join(LIMIT)
    frame, end = frame_header(2, len(data)) + data, frame_header(2, len(last)) + last
    count = (len(got[0]) - len(end)) // len(frame)
    assert 0 < count < 100
    assert got[0] == count * frame + end


def test_a_connection_can_be_replaced_and_taken_away_while_packets_flow(device: Device) -> None:
    """Its descriptor is reused at once, by sockets that must not get a byte of it."""
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                device.device.send(packet(ADDRESS, bytes(100)))

    sender = threading.Thread(target=flood)
    sender.start()
    try:
        for _ in range(300):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            device.queue.connect(PEER, ours)
            theirs.settimeout(LIMIT)
            assert theirs.recv(4)
            ours.shutdown(socket.SHUT_RDWR)
            device.queue.disconnect(PEER, ours)
            ours.close()
            innocent, other = socket.socketpair()
            time.sleep(0.001)
            with innocent, other, theirs:
                other.setblocking(False)
                with pytest.raises(BlockingIOError):
                    other.recv(1)
    finally:
        stop.set()
        sender.join(LIMIT)


def test_a_connection_that_was_replaced_is_not_taken_away_by_its_predecessor(device: Device) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        device.queue.connect(PEER, ours)
        device.queue.disconnect(PEER, device.ours)
        device.device.send(packet(ADDRESS, b"payload"))
        theirs.settimeout(LIMIT)
        assert theirs.recv(4)
        device.queue.disconnect(PEER, ours)


def test_packets_go_back_over_the_connection_of_a_peer_that_has_dialled(kind: str) -> None:
    """By the queue of its first frame; until the connection has ended, and not if there is another."""
    device, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    loop = make_loop(kind, -1, tun.fileno())
    answer = memoryview(frame_header(1, 6) + b"answer")
    dialled, theirs = socket.socketpair()
    receiver = threading.Thread(target=loop.receive, args=(dialled, PEER))
    receiver.start()
    with device, tun, dialled:
        with theirs:
            theirs.settimeout(LIMIT)
            device.settimeout(LIMIT)
            theirs.sendall(frame_header(1, 5) + b"first" + frame_header(0, 5) + b"other")
            assert device.recv(99) == b"first"
            loop.queues[1].send(PEER, answer)
            assert theirs.recv(99) == bytes(answer)
            with pytest.raises(ConnectionError):
                loop.queues[0].send(PEER, answer)  # two queues would mix their frames
        receiver.join(LIMIT)
        with pytest.raises(ConnectionError):
            loop.queues[1].send(PEER, answer)


@pytest.mark.parametrize("is_ours", [True, False])
def test_of_two_connections_our_own_is_kept_and_otherwise_the_newest_is_used(kind: str, *, is_ours: bool) -> None:
    """A peer that dials again may be on another host by now."""
    device, tun = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pairs = [socket.socketpair(), socket.socketpair()]
    loop = make_loop(kind, tun.fileno())
    answer = memoryview(frame_header(0, 6) + b"answer")
    receivers = []
    for number, (ours, theirs) in enumerate(pairs):
        theirs.settimeout(LIMIT)
        if is_ours and not number:
            loop.queues[0].connect(PEER, ours)
            continue
        receivers.append(threading.Thread(target=loop.receive, args=(ours, PEER)))
        receivers[-1].start()
        theirs.sendall(frame_header(0, 5) + b"first")
        assert device.recv(99) == b"first"
    loop.queues[0].send(PEER, answer)
    assert pairs[0 if is_ours else 1][1].recv(99) == bytes(answer)
    for ours, theirs in pairs:
        ours.shutdown(socket.SHUT_RDWR)
        theirs.close()
    for receiver in receivers:
        receiver.join(LIMIT)
    loop.queues[0].disconnect(PEER, pairs[0][0])
    for sock in (device, tun, *(ours for ours, _ in pairs)):
        sock.close()


def test_a_broken_connection_is_an_error(device: Device) -> None:
    device.theirs.close()
    device.device.send(packet(ADDRESS, b"lost"))
    device.flush()
    with pytest.raises(ConnectionError):
        device.queue.send(PEER, memoryview(frame_header(2, 4) + b"lost"))


def test_a_peer_without_connection_is_an_error(device: Device) -> None:
    for peer in (PEER + 1, 1 << 20):
        with pytest.raises(ConnectionError):
            device.queue.send(peer, memoryview(frame_header(2, 4) + b"lost"))
