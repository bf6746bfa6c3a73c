"""The server name (SNI) in a TLS ClientHello (RFC 8446, section 4.1.2, and RFC 6066, section 3)."""

from __future__ import annotations

import struct

RECORD = struct.Struct("!BHH")  # type, version, length
HANDSHAKE, CLIENT_HELLO = 22, 1
SERVER_NAME, HOST_NAME = 0, 0
MAX_HELLO_SIZE = 16384  # bytes of a ClientHello that we wait for
MAX_RECORDS = 8  # that carry a ClientHello: real clients need one or two; all are parsed anew when more bytes come


class NotTlsError(Exception):
    """The bytes are not the start of a ClientHello."""


def server_name(data: bytes) -> str | None:
    """The server name in a client's first bytes, empty if there is none; None while they are incomplete."""
    hello = _client_hello(data)
    if hello is None:
        return None
    try:
        position = 4 + 2 + 32  # message header, version, random
        position += 1 + hello[position]  # session
        position += 2 + struct.unpack_from("!H", hello, position)[0]  # ciphers
        position += 1 + hello[position]  # compression
        end = position + 2 + struct.unpack_from("!H", hello, position)[0]
        position += 2
        while position + 4 <= end:
            kind, length = struct.unpack_from("!HH", hello, position)
            if kind == SERVER_NAME:
                return _first_name(hello[position + 4 : position + 4 + length])
            position += 4 + length
    except (IndexError, struct.error):
        raise NotTlsError("a malformed first message") from None
    return ""


def _client_hello(data: bytes) -> bytes | None:
    """The ClientHello, out of the records that carry it; None while it is incomplete."""
    message, position, needed = b"", 0, 4
    for _ in range(MAX_RECORDS):
        if len(data) - position < RECORD.size:
            if data and data[0] != HANDSHAKE:
                raise NotTlsError("not a TLS record")
            return None
        kind, _, length = RECORD.unpack_from(data, position)
        if kind != HANDSHAKE or not 0 < length <= MAX_HELLO_SIZE:
            raise NotTlsError("not a TLS record")
        message += data[position + RECORD.size : position + RECORD.size + length]
        position += RECORD.size + length
        if message and message[0] != CLIENT_HELLO:
            raise NotTlsError("not a client's first message")
        if len(message) >= 4:
            needed = 4 + int.from_bytes(message[1:4])
        if needed > MAX_HELLO_SIZE:
            raise NotTlsError("a first message of impossible length")
        if len(message) >= needed:
            return message[:needed]
        if position > len(data):
            return None
    raise NotTlsError("a first message in too many pieces")


def _first_name(extension: bytes) -> str:
    _, kind, length = struct.unpack_from("!HBH", extension)
    name = extension[5 : 5 + length]
    if kind != HOST_NAME or len(name) != length:
        raise struct.error
    return name.decode("ascii", errors="replace")
