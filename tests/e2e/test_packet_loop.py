"""Both packet loops on real TUN devices: two nodes in namespaces of this machine, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from pinnace.network.addresses import choose

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.bed

OUTSIDE = "198.51.100.10"  # an address of the hosts; both nodes are on the same
RANGES = choose([])

# A node: its TUN device in the namespace where the process begins, its links in that of the hosts.
NODE = """
import ctypes, os, socket, sys
from pinnace.network import router, rtnetlink
from pinnace.network.addresses import choose
from pinnace.network.fabric import interfaces
from pinnace.network.tun import open_tun
index, hosts, queues = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
tuns = open_tun(queues=queues)
rtnetlink.apply(interfaces(choose([]), index))
assert ctypes.CDLL(None).setns(os.open(hosts, os.O_RDONLY), 0) == 0
listener = socket.create_server(("127.0.0.1", 7000 + index))
loop = router.packet_loop(tuns, choose([]), lambda text: print(text, flush=True))
router.run(loop, listener, b"s" * 32, index=index, address="127.0.0.1", ranges=choose([]),
           find=lambda peer: ("127.0.0.1", 7000 + peer), name_servers=[], on_stop=lambda: None)
"""

# Sends back what it gets, over TCP and UDP.
ECHO = """
import socket, threading
def tcp():
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
def echo(sock):
    while data := sock.recv(1 << 20):
        sock.sendall(data)
    sock.close()
listener = socket.create_server(("0.0.0.0", 9000), backlog=64)
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 9000))
threading.Thread(target=tcp, daemon=True).start()
print("ready", flush=True)
while True:
    udp.sendto(*udp.recvfrom(70000))
"""

# Eight TCP streams at the same time, 8 MB each; datagrams of all sizes to the other node, and to the outside.
CLIENT = """
import os, socket, sys, threading
node, outside = sys.argv[1:]
def stream():
    data, got = os.urandom(1 << 23), bytearray()
    with socket.create_connection((node, 9000), timeout=20) as sock:
        sender = threading.Thread(target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR)))
        sender.start()
        while chunk := sock.recv(1 << 20):
            got += chunk
        sender.join()
    assert got == data
    done.append(1)
done = []
streams = [threading.Thread(target=stream) for _ in range(8)]
for thread in streams:
    thread.start()
for thread in streams:
    thread.join()
assert len(done) == 8
for address in (node, outside):
    for port in range(5):
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            sock.connect((address, 9000))
            for size in (0, 1, 200, 1400, 9000, 60000, 3):
                data = os.urandom(size)
                sock.send(data)
                assert sock.recv(70000) == data, (address, size)
print("done")
"""


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(processes: ExitStack, *argv: str, netns: str = "", loop: str = "") -> subprocess.Popen[str]:
    """Start a process in a network namespace; it ends with the test."""
    enter = ["nsenter", f"--net={netns}"] if netns else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PINNACE_PACKET_LOOP": loop}
    process = subprocess.Popen([*enter, *argv], stdout=subprocess.PIPE, text=True, env=environment)
    processes.enter_context(process)
    processes.callback(process.kill)
    return process


def make_netns(processes: ExitStack) -> str:
    holder = start(processes, "unshare", "--net", "sh", "-c", "ip link set lo up && echo made && exec sleep 100")
    assert holder.stdout
    assert holder.stdout.readline() == "made\n"
    return f"/proc/{holder.pid}/ns/net"


@pytest.mark.parametrize("loops", [("c", "c"), ("python", "python"), ("c", "python")], ids="-".join)
def test_streams_and_datagrams_arrive_unchanged(processes: ExitStack, loops: tuple[str, str]) -> None:
    """Between nodes with different numbers of queues, and to the outside."""
    hosts, *nodes = (make_netns(processes) for _ in range(3))
    subprocess.run(["nsenter", f"--net={hosts}", "ip", "addr", "add", f"{OUTSIDE}/32", "dev", "lo"], check=True)
    for index, (netns, loop) in enumerate(zip(nodes, loops, strict=True)):
        argv = (sys.executable, "-c", NODE, str(index), hosts, str(4 - index))
        node = start(processes, *argv, netns=netns, loop=loop)
        assert node.stdout
        assert f"packet loop: {loop.capitalize()}, {4 - index} queue(s)" in node.stdout.readline()
    for netns in (hosts, nodes[0]):
        server = start(processes, sys.executable, "-c", ECHO, netns=netns)
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
    client = start(processes, sys.executable, "-c", CLIENT, str(RANGES.node(0)), OUTSIDE, netns=nodes[1])
    assert client.communicate(timeout=60)[0] == "done\n"
