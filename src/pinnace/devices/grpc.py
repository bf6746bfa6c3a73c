"""gRPC over a connected socket: as much of it as a device plugin and the kubelet say to each other.

HTTP/2 is the library h2's; it does no I/O, so this fits into one loop over several sockets. Each message of gRPC is a
byte that says that it is not compressed, its length, and the message. See gRPC's PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

OK, UNKNOWN, NOT_FOUND, UNIMPLEMENTED = 0, 2, 5, 12  # status codes
CONTENT_TYPE = "application/grpc"
MAX_MESSAGE = 1 << 20  # bytes; these are far smaller
SEND_TIMEOUT = 5.0  # seconds for a peer on this host to read
_PREFIX = struct.Struct(">BI")


class GrpcError(OSError):
    """The peer has closed the connection, or does not speak gRPC."""


@dataclass(kw_only=True)
class Stream:
    """A call under way: what was received of the peer's message, and what is not sent of ours."""

    path: str = ""
    status: int | None = None
    message: str = ""
    received: bytes = b""
    unsent: bytes = b""
    trailers: list[tuple[str, str]] | None = None  # to be sent at the end


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request that has arrived completely; or, of a client, what it was answered."""

    stream: int
    path: str
    message: bytes
    status: int = OK
    status_message: str = ""


def _decoded(headers: Iterable[Any]) -> dict[str, str]:
    """h2 has decoded them already (``header_encoding``), and declares them as it gets them."""
    return {str(name): str(value) for name, value in headers}


class GrpcConnection:
    """One end of a connection, with any number of calls. All methods raise GrpcError when it is over."""

    def __init__(self, sock: socket.socket, *, client: bool) -> None:
        sock.settimeout(SEND_TIMEOUT)
        self.sock = sock
        self.http = H2Connection(H2Configuration(client_side=client, header_encoding="utf-8"))
        self.streams: dict[int, Stream] = {}
        self.http.initiate_connection()
        self._flush()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    def call(self, path: str, message: bytes) -> int:
        """Of a client: send a request. Its answer comes from ``receive``."""
        number = self.http.get_next_available_stream_id()
        self.streams[number] = Stream(path=path)
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
                   ("content-type", CONTENT_TYPE), ("te", "trailers")]  # fmt: skip
        self.http.send_headers(number, headers)
        self.http.send_data(number, _PREFIX.pack(0, len(message)) + message, end_stream=True)
        self._flush()
        return number

    def begin(self, stream: int) -> None:
        """Of a server: say that messages follow."""
        self.http.send_headers(stream, [(":status", "200"), ("content-type", CONTENT_TYPE)])
        self._flush()

    def send(self, stream: int, message: bytes) -> None:
        """Send a message, as soon as the peer has room for it."""
        if about := self.streams.get(stream):
            about.unsent += _PREFIX.pack(0, len(message)) + message
            self._send_unsent()

    def end(self, stream: int, status: int = OK, message: str = "") -> None:
        """The end of an answer."""
        if about := self.streams.get(stream):
            about.trailers = [("grpc-status", str(status)), ("grpc-message", message)]
            self._send_unsent()

    def answer(self, stream: int, message: bytes) -> None:
        """All of an answer of one message."""
        self.begin(stream)
        self.send(stream, message)
        self.end(stream)

    def refuse(self, stream: int, status: int, message: str) -> None:
        self.begin(stream)
        self.end(stream, status, message)

    def receive(self) -> list[Call]:
        """What has arrived. Call it when the socket can be read."""
        try:
            data = self.sock.recv(1 << 16)
            if not data:
                raise GrpcError("the connection was closed")
            events = self.http.receive_data(data)
        except H2Error as error:
            raise GrpcError(str(error)) from error
        calls: list[Call] = []
        for event in events:
            if isinstance(event, ConnectionTerminated):
                raise GrpcError("the connection was ended")
            calls += self._handle(event)
        self._send_unsent()
        return calls

    def _handle(self, event: object) -> Iterable[Call]:
        match event:
            case RequestReceived(stream_id=int(number), headers=headers):
                self.streams[number] = Stream(path=_decoded(headers).get(":path", ""))
            case (
                ResponseReceived(stream_id=int(number), headers=headers)
                | TrailersReceived(stream_id=int(number), headers=headers)
            ):
                self._note_status(number, _decoded(headers))
            case DataReceived(stream_id=int(number), data=bytes(data), flow_controlled_length=int(length)):
                self.http.acknowledge_received_data(length, number)
                if stream := self.streams.get(number):
                    stream.received += data
                    if len(stream.received) > MAX_MESSAGE:
                        raise GrpcError("a message is too long")
            case StreamEnded(stream_id=int(number)):
                return self._complete(number)
            case StreamReset(stream_id=int(number)):
                self.streams.pop(number, None)
            case WindowUpdated():
                pass  # the caller sends what waits
        return ()

    def _note_status(self, number: int, headers: dict[str, str]) -> None:
        if (stream := self.streams.get(number)) and "grpc-status" in headers:
            stream.status, stream.message = int(headers["grpc-status"]), headers.get("grpc-message", "")

    def _complete(self, number: int) -> Iterable[Call]:
        stream = self.streams.get(number)
        if stream is None:
            return ()
        message = b""
        if len(stream.received) >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(stream.received)
            message = stream.received[_PREFIX.size : _PREFIX.size + length]
            if compressed or len(message) < length:
                raise GrpcError("a message cannot be read")
        status = UNKNOWN if self.http.config.client_side and stream.status is None else stream.status or OK
        if self.http.config.client_side:
            del self.streams[number]
        return [Call(stream=number, path=stream.path, message=message, status=status, status_message=stream.message)]

    def _send_unsent(self) -> None:
        """As much of our messages as the peer's window takes."""
        try:
            for number, stream in list(self.streams.items()):
                while stream.unsent:
                    room = min(self.http.local_flow_control_window(number), self.http.max_outbound_frame_size)
                    if room <= 0:
                        break
                    self.http.send_data(number, stream.unsent[:room])
                    stream.unsent = stream.unsent[room:]
                if stream.trailers and not stream.unsent:
                    self.http.send_headers(number, stream.trailers, end_stream=True)
                    del self.streams[number]
            self._flush()
        except H2Error as error:
            raise GrpcError(str(error)) from error

    def _flush(self) -> None:
        if data := self.http.data_to_send():
            try:
                self.sock.sendall(data)
            except OSError as error:
                raise GrpcError(str(error)) from error
