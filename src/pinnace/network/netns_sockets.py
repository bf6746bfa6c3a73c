"""A door into the fabric: sockets of the fabric's namespace for processes outside of it.

A process that stays in the host's network namespace may not enter the fabric's, but it may use a socket that was made
there. The doorman is a process inside; asked over a socket pair, it makes a socket and hands it out.
"""

from __future__ import annotations

import errno
import os
import socket
import threading


class Door:
    """The outer side."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._lock = threading.Lock()

    def socket(self) -> socket.socket:
        """A fresh TCP socket that lives in the fabric."""
        with self._lock:
            self._pair.send(b"?")
            answer, descriptors, _, _ = socket.recv_fds(self._pair, 1, 1)
        if not answer:
            raise OSError("the fabric is gone")
        if not descriptors:  # there, or here: the kernel drops what a process has no room for
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return socket.socket(fileno=descriptors[0])


def attend(pair: socket.socket) -> None:
    """The inner side: serve until the outer side is gone. Where no socket can be made, it gets an answer without."""
    while pair.recv(1):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
                socket.send_fds(pair, [b"!"], [made.fileno()])
        except OSError:
            pair.send(b"-")
