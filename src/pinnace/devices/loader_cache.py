"""The cache of the dynamic loader, /etc/ld.so.cache: read, and written with more libraries in it.

ldconfig would have to run in every container, and not every image has it. The format is that of glibc 2.2 and newer: a
header, an array of entries in the order that the loader's binary search expects, and strings. See dl-cache.h in glibc.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAGIC = b"glibc-ld.so.cache1.1"
LITTLE_ENDIAN = 2
_HEADER = struct.Struct("<20sIIB3xI12x")  # magic and version, entries, bytes of strings, endianness, extensions
_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, unused, hardware capabilities
# An ELF library for glibc, and of which architecture.
FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}.get(os.uname().machine, -1)  # -1: no entry has them


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """A library: the name by which programs ask for it, and where it is."""

    name: str
    path: str
    flags: int


def parse(cache: bytes) -> list[CacheEntry]:
    """The entries of a cache; none if it is not one. Variants for newer processors are left out."""
    begin = cache.find(MAGIC)  # an old format may be before it
    if begin < 0:
        return []
    data = cache[begin:]
    try:
        _, count, *_ = _HEADER.unpack_from(data)
        rows = [_ENTRY.unpack_from(data, _HEADER.size + number * _ENTRY.size) for number in range(count)]
    except struct.error:
        return []
    return [
        CacheEntry(name=_string(data, name), path=_string(data, path), flags=flags)
        for flags, name, path, _, capabilities in rows
        if not capabilities
    ]


def _string(data: bytes, begin: int) -> str:
    return os.fsdecode(data[begin : data.find(b"\0", begin)])


def dump(entries: Iterable[CacheEntry]) -> bytes:
    """A cache that the loader reads."""
    ordered = sorted(entries, key=lambda entry: (_ORDER(entry.name), entry.flags), reverse=True)
    first = _HEADER.size + len(ordered) * _ENTRY.size
    strings, places = bytearray(), {}
    for text in (text for entry in ordered for text in (entry.name, entry.path)):
        if text not in places:
            places[text] = first + len(strings)
            strings += os.fsencode(text) + b"\0"
    rows = (_ENTRY.pack(entry.flags, places[entry.name], places[entry.path], 0, 0) for entry in ordered)
    return _HEADER.pack(MAGIC, len(ordered), len(strings), LITTLE_ENDIAN, 0) + b"".join(rows) + bytes(strings)


def with_libraries(cache: bytes, libraries: Mapping[str, str]) -> bytes:
    """A cache in which these names lead to these paths, whatever they led to before."""
    kept = [entry for entry in parse(cache) if entry.name not in libraries or entry.flags != FLAGS]
    return dump([*kept, *(CacheEntry(name=name, path=path, flags=FLAGS) for name, path in libraries.items())])


def _compare(one: str, other: str) -> int:
    """As the loader compares names: numbers by their value, and a digit is after every other character."""
    words, others = (re.findall(r"\d+|\D", text) for text in (one, other))
    for mine, its in zip(words, others, strict=False):
        if mine.isdigit() and its.isdigit():
            if int(mine) != int(its):
                return int(mine) - int(its)
        elif mine.isdigit() or its.isdigit():
            return 1 if mine.isdigit() else -1
        elif mine != its:
            return ord(mine) - ord(its)
    return len(words) - len(others)


_ORDER = functools.cmp_to_key(_compare)
