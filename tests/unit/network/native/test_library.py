"""The parts of the server of native sockets that can be called one by one."""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.network.handshake import Protocol, derive_key, dialling, listener_name, listening
from pinnace.network.native import library

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = bytes(range(32))
INDEX, ADDRESS, PORT = 3, "192.0.2.7", 40123
NONCE, DIGEST, PROOF = 32, 32, 68
TCP_USER_TIMEOUT_MS = 12345
IPPROTO_MPTCP, SO_COOKIE = 262, 57
BUCKETS = (1 << 16) // 8

CHILD = """
import os, select, socket, sys, time
sock = socket.socket()
other = socket.socket()
epoll = select.epoll()
match sys.argv[1]:
    case "dup": os.dup(sock.fileno())
    case "epoll": epoll.register(sock)
    case "inheritable": sock.set_inheritable(True)
print(sock.fileno(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def lib() -> ctypes.CDLL:
    return library.load()


@pytest.fixture
def node(lib: ctypes.CDLL) -> library.NodeStruct:
    """The node that the library takes itself for."""
    about = library.NodeStruct.in_dll(lib, "node")
    about.index, about.last_index, about.port = INDEX, 100, PORT
    about.address = int.from_bytes(socket.inet_aton(ADDRESS), "big")
    about.key = (ctypes.c_uint8 * 32)(*derive_key(SECRET, Protocol.SOCKETS))
    return about


@contextlib.contextmanager
def child(kind: str) -> Iterator[tuple[int, int]]:
    """A process with a socket: its pid, and the number of the socket."""
    with subprocess.Popen([sys.executable, "-c", CHILD, kind], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 128, 1000])
def test_hmac(lib: ctypes.CDLL, size: int) -> None:
    data, digest = bytes(n % 251 for n in range(size)), ctypes.create_string_buffer(DIGEST)
    lib.hmac_sha256(SECRET, ctypes.c_size_t(len(SECRET)), data, ctypes.c_size_t(size), digest)
    assert digest.raw == hmac.digest(SECRET, data, "sha256")


@pytest.mark.usefixtures("node")
def test_pythons_listener_takes_our_proof_and_we_its(lib: ctypes.CDLL) -> None:
    handshake = listening(SECRET, lambda _index: Protocol.SOCKETS, listener_name(9, "192.0.2.9", 4000))
    nonce, _ = next(handshake)
    proof, expected = ctypes.create_string_buffer(PROOF), ctypes.create_string_buffer(DIGEST)
    address = int.from_bytes(socket.inet_aton("192.0.2.9"), "big")
    lib.dialler_proof(nonce, 9, ctypes.c_uint32(address), ctypes.c_uint16(4000), proof, expected)
    parts = struct.unpack(f"4s{NONCE}s{DIGEST}s", proof.raw)
    for part in parts[:2]:
        handshake.send(part)
    answer, _ = handshake.send(parts[2])
    assert answer == expected.raw


@pytest.mark.usefixtures("node")
def test_we_take_pythons_proof_and_no_other(lib: ctypes.CDLL) -> None:
    nonce, own = os.urandom(NONCE), ctypes.create_string_buffer(DIGEST)
    lib.check_proof.restype = ctypes.c_bool

    def proof(secret: bytes = SECRET, index: int = 5, listener: bytes = listener_name(INDEX, ADDRESS, PORT)) -> bytes:
        handshake = dialling(secret, Protocol.SOCKETS, index, listener)
        next(handshake)
        return handshake.send(nonce)[0]

    assert lib.check_proof(nonce, proof(), own)
    assert not lib.check_proof(os.urandom(NONCE), proof(), own)
    assert not lib.check_proof(nonce, proof(secret=bytes(32)), own)
    assert not lib.check_proof(nonce, proof(listener=listener_name(INDEX + 1, ADDRESS, PORT)), own)
    assert not lib.check_proof(nonce, proof(listener=listener_name(INDEX, ADDRESS, PORT + 1)), own)
    assert not lib.check_proof(nonce, proof(index=101), own)  # no node can have it


@pytest.mark.parametrize(("kind", "shared"), [("alone", 0), ("dup", 1), ("epoll", 1)])
def test_a_socket_that_somebody_else_refers_to_is_shared(lib: ctypes.CDLL, kind: str, shared: int) -> None:
    lib.is_shared.restype = lib.is_shared_by_links.restype = ctypes.c_bool
    with child(kind) as (pid, number):
        own = lib.copy_descriptor(pid, number)
        directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY)
        try:
            assert own >= 0
            assert lib.is_shared(pid, number, own) == shared
            assert lib.is_shared_by_links(pid, number, own, directory) == shared  # what older kernels have
        finally:
            os.close(own)
            os.close(directory)


@pytest.mark.parametrize(("kind", "cloexec"), [("alone", True), ("inheritable", False)])
def test_flags_of_a_descriptor(lib: ctypes.CDLL, kind: str, cloexec: bool) -> None:
    with child(kind) as (pid, number):
        flags = lib.descriptor_flags(pid, number)
        assert bool(flags & os.O_CLOEXEC) is cloexec
        assert not flags & os.O_NONBLOCK
        assert lib.descriptor_flags(pid, 99) == -1


# In a PID namespace of its own: two processes with the same number, one after the other, each with a socket.
SUCCESSORS = """
import os, signal, socket
from pathlib import Path
from pinnace.network.native import library
lib, cookies = library.load(), []
for _ in range(2):
    with socket.socket() as sock:
        sock.set_inheritable(bool(cookies))
        Path("/proc/sys/kernel/ns_last_pid").write_text("1000")
        if not (pid := os.fork()):
            signal.pause()
        number = sock.fileno()
        with socket.socket(fileno=lib.copy_descriptor(pid, number)) as copy:
            print(pid, copy.getsockopt(socket.SOL_SOCKET, 57, 8) == sock.getsockopt(socket.SOL_SOCKET, 57, 8),
                  bool(lib.descriptor_flags(pid, number) & os.O_CLOEXEC))
        cookies.append(number)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
"""


def test_a_process_is_not_taken_for_an_earlier_one_of_its_number(lib: ctypes.CDLL) -> None:
    assert lib  # built
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c"]
    result = subprocess.run([*command, SUCCESSORS], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.splitlines() == ["1001 True True", "1001 True False"], result.stderr


def test_options_are_copied(lib: ctypes.CDLL) -> None:
    lib.copy_options.restype = ctypes.c_bool
    wanted = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS),
        (socket.IPPROTO_IP, socket.IP_TOS, 0x10),
    ]
    with socket.socket() as one, socket.socket() as other:
        for option in wanted:
            one.setsockopt(*option)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 40_000)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        send_buffer = other.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert lib.copy_options(one.fileno(), other.fileno(), socket.AF_INET)
        assert [(level, name, other.getsockopt(level, name)) for level, name, _ in wanted] == wanted
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 80_000
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == send_buffer
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 5)
        assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


@pytest.mark.parametrize("nodelay", [0, 1])
def test_accepted_sockets_inherit_options(lib: ctypes.CDLL, nodelay: int) -> None:
    """Those that we accept from other nodes have options of their own; what the application's own socket has counts."""
    lib.inherit_options.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, nodelay)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for accepted in (first, second):  # for the second they are known
            buffers = [accepted.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            lib.inherit_options(listener.fileno(), 77 + nodelay, accepted.fileno())
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == nodelay
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == bytes(8)
            now = [accepted.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
            assert now == buffers


def test_the_address_of_a_network_namespace(lib: ctypes.CDLL) -> None:
    lib.local_address_in.restype = ctypes.c_uint32
    loopback, nowhere = library.NetworkStruct(0x7F000000, 0x7FFFFFFE), library.NetworkStruct(1, 2)
    assert lib.local_address_in(os.getpid(), ctypes.byref(loopback)) == 0x7F000001
    assert lib.local_address_in(os.getpid(), ctypes.byref(nowhere)) == 0


def test_a_listening_socket_knows_how_many_wait(lib: ctypes.CDLL) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert lib.queue_length(listener.fileno()) == 0
        with socket.create_connection(listener.getsockname()):
            assert select.select([listener], [], [], 5)[0]
            assert lib.queue_length(listener.fileno()) == 1


@pytest.mark.parametrize(
    ("kind", "protocol", "listens"),
    [
        (socket.SOCK_STREAM, socket.IPPROTO_TCP, True),
        (socket.SOCK_STREAM, IPPROTO_MPTCP, True),
        (socket.SOCK_DGRAM, socket.IPPROTO_UDP, False),
    ],
)
def test_which_sockets_can_listen_for_tcp(lib: ctypes.CDLL, kind: int, protocol: int, listens: bool) -> None:
    """Go's listen for MPTCP where the kernel knows it."""
    try:
        sock = socket.socket(socket.AF_INET, kind, protocol)
    except OSError:
        pytest.skip("this kernel does not know that protocol")
    family = ctypes.c_int()
    lib.is_listener.restype = ctypes.c_bool
    with sock:
        assert lib.is_listener(sock.fileno(), ctypes.byref(family)) == listens
        assert not listens or family.value == socket.AF_INET


def test_whose_network_a_socket_is_of(lib: ctypes.CDLL) -> None:
    lib.owner_of_network.restype, lib.is_in_network_of.restype = ctypes.c_uint64, ctypes.c_bool
    with socket.socket() as sock:
        number, own = sock.fileno(), os.getpid()
        if not lib.owner_of_network(number):
            pytest.skip("only who has the capabilities of a network can tell")
        assert lib.owner_of_network(number) == os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116
        assert lib.is_in_network_of(own, number)
        command = ["unshare", "--user", "--net", "sh", "-c", "echo; sleep 60"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout
            if other.stdout.readline():
                assert not lib.is_in_network_of(other.pid, number)
            other.kill()


class Endpoint(ctypes.Structure):
    """``struct endpoint``."""

    _fields_ = (("ip", ctypes.c_uint32 * 4), ("port", ctypes.c_uint16))

    @staticmethod
    def of(address: tuple[str, int]) -> Endpoint:
        mapped = bytes(10) + b"\xff\xff" + socket.inet_aton(address[0])
        return Endpoint((ctypes.c_uint32 * 4).from_buffer_copy(mapped), address[1])


class Name(ctypes.Structure):
    """``struct name``."""

    _fields_ = (
        ("cookie", ctypes.c_uint64),
        ("family", ctypes.c_int),
        *((name, Endpoint) for name in ("local", "peer", "real_local", "real_peer")),
    )


def test_the_addresses_of_a_connection_are_kept_as_long_as_there_is_one(lib: ctypes.CDLL) -> None:
    """However many come and go: their places are used again."""
    memory = ctypes.create_string_buffer(lib.memory_size())
    ctypes.c_void_p.in_dll(lib, "memory").value = ctypes.addressof(memory)
    lib.find_name.restype, lib.find_name.argtypes = ctypes.POINTER(Name), (ctypes.c_uint64,)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        cookie = int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)
        shown = Endpoint.of(("10.244.0.7", 41234)), Endpoint.of(("10.244.1.5", 80))
        real = Endpoint.of(sock.getsockname()), Endpoint.of(sock.getpeername())
        lib.add_name(ctypes.byref(Name(cookie, socket.AF_INET, *shown, *real)))
        for number in range(1, 100):  # all of them in the same place
            gone = Endpoint.of(("127.0.0.1", number)), Endpoint.of(("127.0.0.1", 1))
            lib.add_name(ctypes.byref(Name(cookie + number * BUCKETS, socket.AF_INET, *shown, *gone)))
            assert lib.find_name(cookie + number * BUCKETS)
        assert lib.find_name(cookie).contents.local.port == shown[0].port
