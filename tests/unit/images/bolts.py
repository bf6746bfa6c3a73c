"""Databases in bbolt's format, made by hand."""

from __future__ import annotations

import struct

from pinnace.images.boltdb import BRANCH, BUCKET, HEADER, LEAF, LEAF_ELEMENT, MAGIC, META, NO_FREE_LIST, VERSION, fnv

PAGE = 4096
KEPT, DELETED = b"what is kept", b"what was deleted"


def page(number: int, flags: int, count: int, body: bytes, more: int = 0) -> bytes:
    return (HEADER.pack(number, flags, count, more) + body).ljust(PAGE * (1 + more), b"\0")


def meta(number: int, *, root: int, end: int, transaction: int) -> bytes:
    fields = META.pack(MAGIC, VERSION, PAGE, 0, root, 0, NO_FREE_LIST, end, transaction, 0)[:-8]
    return page(number, 0x04, 0, fields + struct.pack("<Q", fnv(fields)))


def database() -> bytes:
    """Pages: two of description, a root with a bucket, a branch, a leaf over two pages, and two that are free."""
    key = b"bucket"
    bucket = LEAF_ELEMENT.pack(BUCKET, LEAF_ELEMENT.size, len(key), 16) + key + struct.pack("<QQ", 3, 0)
    branch = struct.pack("<IIQ", 16, 1, 4) + b"a"
    leaf = LEAF_ELEMENT.pack(0, LEAF_ELEMENT.size, 1, PAGE) + b"a" + KEPT.ljust(PAGE, b".")
    pages = [
        meta(0, root=2, end=7, transaction=8),
        meta(1, root=6, end=7, transaction=7),  # of the transaction before, in which the last page was the root
        page(2, LEAF, 1, bucket),
        page(3, BRANCH, 1, branch),
        page(4, LEAF, 1, leaf, more=1),
        page(6, LEAF, 0, DELETED),
        DELETED.ljust(PAGE, b"\0"),
    ]
    return b"".join(pages)
