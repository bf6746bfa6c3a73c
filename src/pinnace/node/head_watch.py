"""Whether the head still lives, for every other node: by its record, by an open link, or by its silence."""

from __future__ import annotations

import contextlib
import socket
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from pinnace.network import links
from pinnace.network.handshake import HandshakeError, Protocol, dial, listener_name
from pinnace.spec import HEAD, NodeRecord, NodeState
from pinnace.spec.files import LIST_SHARE

if TYPE_CHECKING:
    from pinnace.spec import ClusterSpec

RETRY_PAUSE = 0.2  # seconds between attempts to reach the head
LOST_LINK_PAUSE = 0.01  # seconds after a link was lost until the record is read again: the head may have ended
CONNECT_LIMIT = 5.0  # seconds for one
SILENCE_LIMIT = 120.0  # seconds without the head after which a node gives up
UNREACHED_LIMIT = 12.0  # seconds of a head that runs, and that this host has never reached


class Contact(StrEnum):
    """How far an attempt to reach the head came."""

    NONE = "none"
    CONNECTED = "connected"
    LINKED = "linked"


def wait_for_end(cluster: ClusterSpec, index: int) -> str:
    """Return when the head of a cluster has ended; or, with the reason, if this host does not reach it at all.

    ``index`` is that of the node that asks.
    """
    heard, began, reached = time.monotonic(), 0.0, False
    while time.monotonic() - heard < SILENCE_LIMIT:
        asked = time.monotonic()
        head = NodeRecord.read(cluster.node_file(HEAD))
        look = time.monotonic() - asked
        if head and head.is_over:
            return ""
        contact = Contact.NONE
        if head and head.state is NodeState.RUNNING:
            began = began or time.monotonic()
            contact = _hold_link(cluster, index, head)
            reached = reached or contact is not Contact.NONE
            if contact is Contact.LINKED:
                heard = time.monotonic()
            if not reached and time.monotonic() - began > UNREACHED_LIMIT:
                return f"it does not reach port {head.links} of {head.address}, where the first node {head.name} is"
        time.sleep(LOST_LINK_PAUSE if contact is Contact.LINKED else max(RETRY_PAUSE, LIST_SHARE * look))
    return ""


def _hold_link(cluster: ClusterSpec, index: int, head: NodeRecord) -> Contact:
    """Keep a link to the head open until its other end is gone, which tells at once."""
    at, contact = (head.address, head.links), Contact.NONE
    with contextlib.suppress(OSError, HandshakeError), socket.create_connection(at, timeout=CONNECT_LIMIT) as sock:
        contact = Contact.CONNECTED
        dial(sock, cluster.link_key, Protocol.LINKS, index, listener_name(HEAD, *at))
        links.prepare(sock)
        contact = Contact.LINKED
        sock.recv(1)  # nothing is ever sent here
    return contact
