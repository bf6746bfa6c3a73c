"""Protocol Buffers, as far as ours go: numbers, text, and messages within messages. See ``plugin_api``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, LENGTH_DELIMITED = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # bytes of the others, which are skipped


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; a set highest bit says that more follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    """Zero is not written, as in proto3."""
    return varint(field << 3 | VARINT) + varint(value) if value else b""


def bytes_field(field: int, value: bytes) -> bytes:
    """A text or a message, also an empty one."""
    return varint(field << 3 | LENGTH_DELIMITED) + varint(len(value)) + value


def text_field(field: int, value: str) -> bytes:
    return bytes_field(field, value.encode()) if value else b""


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a message ends in the middle of a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in their order, by number."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        length, at = _read_varint(data, at) if kind == LENGTH_DELIMITED else (_FIXED.get(kind, -1), at)
        if length < 0 or at + length > len(data):
            raise ValueError("a message cannot be read")
        if kind == LENGTH_DELIMITED:
            yield key >> 3, data[at : at + length]
        at += length


def texts(data: bytes, field: int) -> list[str]:
    """All values of a repeated field of text."""
    return [value.decode() for number, value in fields(data) if number == field and isinstance(value, bytes)]


def messages(data: bytes, field: int) -> list[bytes]:
    """All values of a repeated field of messages."""
    return [value for number, value in fields(data) if number == field and isinstance(value, bytes)]


def number(data: bytes, field: int) -> int:
    return next((value for found, value in fields(data) if found == field and isinstance(value, int)), 0)
