"""The process that routes a node's packets between its TUN device, the links to other nodes, and the outside."""

from __future__ import annotations

import os
import threading
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pinnace.network import links
from pinnace.network.accepting import raise_file_limit
from pinnace.network.egress import Egress
from pinnace.network.lookup import Lookup

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pinnace.network.addresses import Ranges
    from pinnace.network.lookup import Address


@dataclass(kw_only=True)
class Routes:
    """Maps a destination address to the link of the node that has it."""

    index: int
    ranges: Ranges
    secret: bytes
    lookup: Lookup
    _links: dict[int, links.Link] = field(default_factory=dict)

    def link(self, destination: int) -> links.Link | links.Discard | None:
        """The link for an address; None for one outside the fabric, and for the resolver's."""
        owner = self.ranges.owner(destination)
        if owner is None or destination == int(self.ranges.resolver):
            return None
        if owner > self.ranges.last_index:  # in the nodes' range, but no node can have it
            return links.Discard()
        link = self._links.get(owner)
        if link is None:
            link = self._links[owner] = links.Link(self.index, owner, self.secret, self.lookup)
        return link


def run(
    tun: int,
    listener: socket.socket,
    secret: bytes,
    *,
    index: int,
    address: str,
    ranges: Ranges,
    find: Callable[[int], Address | None],
    name_servers: Sequence[str],
    on_stop: Callable[[], None],
) -> None:
    """Route the packets of node ``index``, for ever.

    Peers dial ``listener`` at the host's ``address``; ``find`` gives the address of a peer by its index. ``on_stop`` is
    called when the user's command asks to end the cluster.
    """
    raise_file_limit()
    routes = Routes(index=index, ranges=ranges, secret=secret, lookup=Lookup(find))
    egress = Egress(tun, ranges, lambda: list(name_servers))

    def serve() -> None:
        try:
            links.serve(
                listener,
                secret,
                index=index,
                address=address,
                last_index=ranges.last_index,
                tun=tun,
                on_stop=on_stop,
            )
        finally:  # a node that only sends is of no use: end this process, so that the agent starts it again
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=serve, daemon=True, name="links").start()
    links.send_from_tun(tun, routes.link, egress.send)
