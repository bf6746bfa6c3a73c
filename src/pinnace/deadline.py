"""A limit for a whole exchange over a socket. A socket's own time limit begins anew with every byte."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    import ssl

CHUNK = 16384  # bytes per send


class DeadlineSocket:
    """A connected socket as ``http.client`` uses it, on which nothing is waited for beyond a moment."""

    def __init__(self, sock: socket.socket | ssl.SSLSocket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline
        self._readers, self._closed = 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, value: float | None) -> None:
        """The deadline decides."""

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out: the answer as a whole took too long")
        self._sock.settimeout(left)

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            self._limit()
            self._sock.sendall(view[start : start + CHUNK])

    def recv_into(self, buffer: Any) -> int:
        self._limit()
        return self._sock.recv_into(buffer)

    def makefile(self, mode: str = "r", **_: object) -> io.BufferedReader:
        if mode != "rb":
            raise ValueError(f"mode {mode}")
        self._readers += 1
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """As for any socket, what was begun to be read can be read to its end."""
        self._closed = True
        if not self._readers:
            self._sock.close()

    def reader_closed(self) -> None:
        self._readers -= 1
        if self._closed:
            self.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: DeadlineSocket) -> None:
        self._socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._socket.reader_closed()
