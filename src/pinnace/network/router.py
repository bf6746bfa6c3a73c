"""The process that routes a node's packets between its TUN device, the links to other nodes, and the outside."""

from __future__ import annotations

import os
import threading
import traceback
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pinnace.c_library import LibraryError
from pinnace.network import links, native_packet_loop
from pinnace.network.accepting import raise_file_limit
from pinnace.network.egress import Egress
from pinnace.network.lookup import Lookup
from pinnace.network.native_packet_loop import NativePacketLoop
from pinnace.network.packet_loop import PythonPacketLoop

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pinnace.network.addresses import Ranges
    from pinnace.network.lookup import Address
    from pinnace.network.packet_loop import PacketLoop, Queue

MIN_LINKS = 64  # that are kept, used or not
LOOP_VARIABLE = "PINNACE_PACKET_LOOP"  # "python": do not use the library


@dataclass(kw_only=True)
class Routes:
    """Maps a destination address to the link of the node that has it, for the packets of one queue."""

    loop: PacketLoop
    queue: Queue
    index: int
    ranges: Ranges
    secret: bytes
    lookup: Lookup
    _links: dict[int, links.Link] = field(default_factory=dict)
    _max_links: int = 0  # beyond which unused ones are dropped

    def link(self, destination: int) -> links.Link | links.Discard | None:
        """The link for an address; None for one outside the fabric, and for the resolver's."""
        owner = self.ranges.owner(destination)
        if owner is None or destination == int(self.ranges.resolver):
            return None
        if owner > self.ranges.last_index:  # in the nodes' range, but no node can have it
            return links.Discard()
        link = self._links.get(owner)
        if link is None:
            self._forget_unused()
            link = self._links[owner] = links.Link(
                self.queue, self.index, owner, self.secret, self.lookup, loop=self.loop
            )
        return link

    def _forget_unused(self) -> None:
        """Drop links of peers that do not exist, or have ended: a pod may send to all addresses that there are."""
        if len(self._links) >= self._max_links:
            self._links = {peer: link for peer, link in self._links.items() if link.is_used}
            self._max_links = max(MIN_LINKS, 2 * len(self._links))


def packet_loop(tuns: Sequence[int], ranges: Ranges, say: Callable[[str], None]) -> PacketLoop:
    """The loop in C where its library was built, otherwise the one in Python. ``say`` is told which, and why."""
    reason = f"${LOOP_VARIABLE} asks for it"
    if os.environ.get(LOOP_VARIABLE) != "python":
        try:
            loop = NativePacketLoop(native_packet_loop.load(), tuns, ranges)
        except LibraryError as error:
            reason = str(error)
        else:
            say(f"packet loop: C, {len(tuns)} queue(s)")
            return loop
    say(f"packet loop: Python, {len(tuns)} queue(s): {reason}")
    return PythonPacketLoop(tuns)


def run(
    loop: PacketLoop,
    listener: socket.socket,
    secret: bytes,
    *,
    index: int,
    address: str,
    ranges: Ranges,
    find: Callable[[int], Address | None],
    name_servers: Sequence[str],
    on_stop: Callable[[], object],
) -> None:
    """Route the packets of node ``index``, for ever.

    Peers dial ``listener`` at the host's ``address``; ``find`` gives the address of a peer by its index. ``on_stop`` is
    called when the user's command asks to end the cluster.
    """
    raise_file_limit()
    lookup = Lookup(find)
    egress = Egress(ranges, name_servers, loop.udp_flows)

    def serve() -> None:
        links.serve(
            listener,
            secret,
            index=index,
            address=address,
            last_index=ranges.last_index,
            loop=loop,
            on_stop=on_stop,
        )

    def send(queue: Queue) -> None:
        routes = Routes(loop=loop, queue=queue, index=index, ranges=ranges, secret=secret, lookup=lookup)
        links.send_from_queue(queue, routes.link, egress.send)

    first, *others = loop.queues
    _start(serve, "links")
    for queue in others:
        _start(partial(send, queue), "queue")
    send(first)


def _start(work: Callable[[], None], name: str) -> None:
    """Run a part in a thread. When one ends the rest is of no use: the process ends, and the agent starts it again."""

    def run_or_exit() -> None:
        try:
            work()
        finally:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=run_or_exit, daemon=True, name=name).start()
