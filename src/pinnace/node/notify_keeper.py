"""Keeps the descriptors of containers' seccomp notifications, so that their server can die and come back.

runc connects to a socket and sends the descriptor when it starts a container, or a process in one. If the last copy of
a descriptor were closed, the kernel would fail all calls of that container that are caught. So the agent has a copy of
each, until nobody is left who could call.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import TYPE_CHECKING

from pinnace.network.splice import BACKLOG
from pinnace.node.messages import Notifications

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.node.messages import Channel

MAX_STATE = 1 << 16  # bytes of what runc says about the container


def listen(path: str) -> socket.socket:
    """The socket to which runc connects."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(BACKLOG)
    return listener


class NotifyKeeper:
    """All descriptors of one node, each with a key. ``pass_on`` gives one to the server, if that runs."""

    def __init__(self, listener: socket.socket, pass_on: Callable[[int, int], None]) -> None:
        self._listener, self._pass_on = listener, pass_on
        self._listener.setblocking(False)
        self._connections: dict[int, socket.socket] = {}  # of runc, by descriptor
        self._kept: dict[int, int] = {}  # key by descriptor
        self._next_key = 1

    def register(self, poll: select.poll) -> None:
        """Have ``handle`` called for what there is to do."""
        poll.register(self._listener, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, select.POLLIN)
        for descriptor in self._kept:
            poll.register(descriptor, 0)  # POLLHUP comes unasked

    def handle(self, descriptor: int) -> bool:
        """React to an event. Whether it was one of ours."""
        if descriptor == self._listener.fileno():
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                self._connections[connection.fileno()] = connection
        elif descriptor in self._connections:
            self._receive(self._connections.pop(descriptor))
        elif descriptor in self._kept:
            del self._kept[descriptor]
            os.close(descriptor)
        else:
            return False
        return True

    def source(self, channel: Channel) -> NotifySource:
        """In a server that has just been forked, and has inherited all descriptors: these, and those that come."""
        return NotifySource(channel, [(key, descriptor) for descriptor, key in self._kept.items()])

    def _receive(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(connection, MAX_STATE, 1, socket.MSG_DONTWAIT)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
                self._kept[descriptor] = self._next_key
                self._pass_on(self._next_key, descriptor)
                self._next_key += 1


class NotifySource:
    """Descriptors for the server: those that it has inherited, and those that the agent passes on."""

    def __init__(self, channel: Channel, inherited: list[tuple[int, int]]) -> None:
        self._channel, self._inherited = channel, inherited

    def receive(self) -> tuple[int, int] | None:
        """A key and its descriptor; None when the agent is gone."""
        if self._inherited:
            return self._inherited.pop()
        message, descriptors = self._channel.receive_with_descriptors()
        return (message.key, descriptors[0]) if isinstance(message, Notifications) and descriptors else None
