"""Erases deleted entries from containerd's database file.

A deleted entry stays in the file, in a free page, until the page is reused. The entries of containers have their
environment, and so the pods' secrets. The format is bbolt's (version 2 of the file): pages of one size; the first two
are meta pages, of which the one with the higher transaction is valid; every other page is a branch, a leaf, or free.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAGIC, VERSION = 0xED0CDAED, 2
HEADER = struct.Struct("<QHHI")  # number, flags, count of elements, further pages that belong to it
META = struct.Struct(
    "<IIIIQQQQQQ"
)  # magic, version, page size, flags, root, sequence, free list, end, transaction, sum
BRANCH_ELEMENT = struct.Struct("<IIQ")  # position and size of the key, page
LEAF_ELEMENT = struct.Struct("<IIII")  # flags, position, sizes of key and value
BRANCH, LEAF, FREE_LIST = 0x01, 0x02, 0x10
BUCKET = 0x01  # a leaf's element that is itself a tree
NO_FREE_LIST = (1 << 64) - 1


class BoltError(ValueError):
    """The file does not have the expected format."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    page_size: int
    root: int
    free_list: int
    end: int
    transaction: int


def erase_free_pages(path: Path) -> int:
    """Overwrite all pages that are not in the tree, and return their number. No process may have the file open."""
    with path.open("r+b") as file:
        data = file.read()
        meta = read_meta(data)
        used = {0, 1, *reachable(data, meta)}
        free = [page for page in range(len(data) // meta.page_size) if page not in used]
        for page in free:
            file.seek(page * meta.page_size)
            file.write(bytes(meta.page_size))
    return len(free)


def read_meta(data: bytes) -> Meta:
    """The meta page of the last complete transaction."""
    found = []
    size = META.unpack_from(data, HEADER.size)[2] if len(data) > HEADER.size + META.size else 0
    for at in (HEADER.size, size + HEADER.size):
        if not size or at + META.size > len(data):
            continue
        magic, version, page_size, _, root, _, free_list, end, transaction, checksum = META.unpack_from(data, at)
        if (magic, version, checksum) == (MAGIC, VERSION, fnv(data[at : at + META.size - 8])):
            found.append(Meta(page_size=page_size, root=root, free_list=free_list, end=end, transaction=transaction))
    if not found:
        raise BoltError("no transaction is complete")
    return max(found, key=lambda meta: meta.transaction)


def reachable(data: bytes, meta: Meta) -> set[int]:
    """The pages that can be reached from the root, and those of the free list."""
    used: set[int] = set()
    left = [meta.root] + ([meta.free_list] if meta.free_list != NO_FREE_LIST else [])
    while left:
        page = left.pop()
        at = page * meta.page_size
        if not 1 < page < meta.end or at + meta.page_size > len(data):
            raise BoltError(f"page {page} is not in the file")
        number, flags, count, more = HEADER.unpack_from(data, at)
        if number != page or flags not in {BRANCH, LEAF, FREE_LIST} or page in used:
            raise BoltError(f"page {page} is not what it should be")
        used |= set(range(page, page + more + 1))
        first = at + HEADER.size
        if flags == BRANCH:
            left += [BRANCH_ELEMENT.unpack_from(data, first + index * BRANCH_ELEMENT.size)[2] for index in range(count)]
        elif flags == LEAF:
            left += _buckets(data, first, count)
    return used


def _buckets(data: bytes, first: int, count: int) -> list[int]:
    """The root pages of the buckets in a leaf. Inline buckets, which have the root 0, are left out."""
    roots = []
    for index in range(count):
        here = first + index * LEAF_ELEMENT.size
        flags, position, key_size, _ = LEAF_ELEMENT.unpack_from(data, here)
        if flags & BUCKET:
            roots.append(struct.unpack_from("<Q", data, here + position + key_size)[0])
    return [root for root in roots if root]


def fnv(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return state
