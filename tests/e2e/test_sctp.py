"""SCTP between pods and through Services, on any kernel: packets made by hand, with the kernel's address translation.

The bed's kernel has no SCTP sockets, so two programs exchange the first two packets of an association (RFC 9260): INIT,
and INIT ACK, whose cookie tells whom the server saw. Checksums are verified at both ends; a Service changes the port,
and so the checksum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.namespaces import Namespace, namespace, pod, service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NODES = ("n1", "n2")
COMMON = """
import os, socket, struct, sys, time
INIT, INIT_ACK = 1, 2
def crc(data):
    state = 0xffffffff
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82f63b78 if state & 1 else 0)
    return state ^ 0xffffffff
def packet(source, target, verification, kind, tag, more=b""):
    chunk = struct.pack("!BBHIIHHI", kind, 0, 20 + len(more), tag, 65536, 1, 1, 1) + more
    chunk += bytes(-len(chunk) % 4)
    ports = struct.pack("!HHI", source, target, verification)
    return ports + struct.pack("<I", crc(ports + bytes(4) + chunk)) + chunk
def read(data):
    data = data[(data[0] & 15) * 4:]
    source, target, verification = struct.unpack_from("!HHI", data)
    kind, _, length, tag = struct.unpack_from("!BBHI", data, 12)
    right = struct.unpack_from("<I", data, 8)[0] == crc(data[:8] + bytes(4) + data[12:])
    return source, target, verification, kind, tag, data[32:12 + length], right
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
"""
SERVER = """
while True:
    data, (peer, _) = raw.recvfrom(65535)
    source, target, _, kind, tag, _, right = read(data)
    if kind == INIT and target == 9999 and right:
        cookie = f"{os.environ['HOSTNAME']} {peer}".encode()
        more = struct.pack("!HH", 7, 4 + len(cookie)) + cookie
        raw.sendto(packet(9999, source, tag, INIT_ACK, 77, more), (peer, 0))
"""
CLIENT = """
host, port = socket.gethostbyname(sys.argv[1]), int(sys.argv[2])
raw.settimeout(1)
for attempt in range(60):
    own, tag = 20000 + attempt, 1000 + attempt
    raw.sendto(packet(own, port, 0, INIT, tag), (host, 0))
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            data, (peer, _) = raw.recvfrom(65535)
        except TimeoutError:
            break
        source, target, verification, kind, _, more, right = read(data)
        if (peer, source, target, verification, kind, right) == (host, port, own, tag, INIT_ACK, True):
            print(more[4:].decode())
            sys.exit()
sys.exit("no answer")
"""


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, "sctp") as here:
        for node in NODES:
            here.create(
                pod(f"server-{node}", "python3", "-c", COMMON + SERVER, of="python", nodeName=node),
                pod(f"client-{node}", of="python", nodeName=node),
                service(f"to-{node}", {"app": f"server-{node}"}, {"port": 80, "targetPort": 9999, "protocol": "SCTP"}),
            )
        here.ready(*(f"{kind}-{node}" for kind in ("server", "client") for node in NODES), limit=120)
        yield here


@pytest.mark.parametrize("server", NODES)
@pytest.mark.parametrize("client", NODES)
def test_pods_and_services_carry_sctp_and_keep_addresses(here: Namespace, client: str, server: str) -> None:
    own = here.address(f"client-{client}")
    for host, port in ((here.address(f"server-{server}"), "9999"), (f"to-{server}", "80")):
        words = ["exec", f"client-{client}", "--", "python3", "-c", COMMON + CLIENT, host, port]
        assert here(*words).split() == [f"server-{server}", own]
