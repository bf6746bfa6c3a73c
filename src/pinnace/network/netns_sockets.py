"""Sockets of the fabric's network namespace for processes outside of it.

A process in the host's network namespace may not enter the fabric's, but it may use a socket that was created there. A
process inside serves requests over a socket pair: it creates a socket and passes it out (SCM_RIGHTS).
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
from typing import Any

REQUEST, REPLY, FAILURE = b"?", b"!", b"-"


class NetnsSockets:
    """The client, outside the namespace."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._lock = threading.Lock()

    def socket(self) -> socket.socket:
        """A new TCP socket of the fabric's namespace."""
        with self._lock:
            self._pair.send(REQUEST)
            reply, descriptors, _, _ = socket.recv_fds(self._pair, 1, 1)
        if not reply:
            raise OSError("the fabric is gone")
        if not descriptors:  # the server has none left, or we: the kernel drops those that exceed our limit
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return socket.socket(fileno=descriptors[0])


def serve(*pairs: socket.socket) -> None:
    """The server, inside the namespace: until all clients are gone. A reply without a socket means failure."""
    with selectors.DefaultSelector() as selector:
        for pair in pairs:
            selector.register(pair, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                _serve_one(selector, key.fileobj)


def _serve_one(selector: selectors.BaseSelector, pair: Any) -> None:
    if not pair.recv(1):
        selector.unregister(pair)
        return
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
            socket.send_fds(pair, [REPLY], [made.fileno()])
    except OSError:
        pair.send(FAILURE)
