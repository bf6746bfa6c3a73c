"""Notices that peers have closed their connections: one thread for all links, however many nodes there are."""

from __future__ import annotations

import functools
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    HungUp = Callable[[socket.socket], None]

EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT  # peers never send on these connections


class HangupWatcher:
    """Calls a function, once, when a peer has closed a connection, or has sent something."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[socket.socket, HungUp]] = {}  # by descriptor
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="hangups").start()

    def add(self, sock: socket.socket, hung_up: HungUp) -> None:
        """Watch a connection until it is closed. OSError or ValueError if that cannot be."""
        with self._lock:
            self._epoll.register(sock, EVENTS)
            self._watched[sock.fileno()] = sock, hung_up

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                with self._lock:
                    found = self._watched.get(descriptor)
                    if not found or not _has_hung_up(
                        found[0]
                    ):  # a new one: another of that number was closed meanwhile
                        continue
                    del self._watched[descriptor]
                sock, hung_up = found
                hung_up(sock)


def _has_hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN | select.POLLRDHUP)
    except ValueError:  # closed by ourselves
        return True
    return bool(poll.poll(0))


@functools.cache
def watcher() -> HangupWatcher:
    """The one of this process."""
    return HangupWatcher()
