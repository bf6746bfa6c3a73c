"""Whether the head still lives, for every other node: by its record, by an open link, or by its silence."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

from pinnace.network import links
from pinnace.network.handshake import HandshakeError, Protocol, dial, listener_name
from pinnace.spec import HEAD, NodeRecord, NodeState

if TYPE_CHECKING:
    from pinnace.spec import ClusterSpec

RETRY_PAUSE = 0.2  # seconds between attempts to reach the head
SILENCE_LIMIT = 120.0  # seconds without the head after which a node gives up


def wait_for_end(cluster: ClusterSpec, index: int) -> None:
    """Return when the head of a cluster has ended. ``index`` is that of the node that asks."""
    heard = time.monotonic()
    while time.monotonic() - heard < SILENCE_LIMIT:
        head = NodeRecord.read(cluster.node_file(HEAD))
        if head and head.is_over:
            return
        if head and head.state is NodeState.RUNNING and _hold_link(cluster, index, head):
            heard = time.monotonic()
        time.sleep(RETRY_PAUSE)


def _hold_link(cluster: ClusterSpec, index: int, head: NodeRecord) -> bool:
    """Keep a link to the head open until its other end is gone, which tells at once. Whether there was one."""
    at, held = (head.address, head.links), False
    with contextlib.suppress(OSError, HandshakeError), socket.create_connection(at, timeout=5) as sock:
        dial(sock, cluster.link_key, Protocol.LINKS, index, listener_name(HEAD, *at))
        links.keep_alive(sock)
        held = True
        sock.recv(1)  # nothing is ever sent here
    return held
