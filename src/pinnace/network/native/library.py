"""The server of native sockets as a library (``sockets/``), and the structures that it shares with Python."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from pinnace import c_library

LIBRARY = Path(__file__).with_name("_sockets.so")
SOURCES = Path(__file__).with_name("sockets")
COUNTERS = ("outside", "pods", "accepted", "general", "spliced")  # at the beginning of the memory, 64 bits each


class NetworkStruct(ctypes.Structure):
    """``struct network``: IPv4, in the host's order."""

    _fields_ = (("first", ctypes.c_uint32), ("last", ctypes.c_uint32))


class NodeStruct(ctypes.Structure):
    """``struct node``."""

    _fields_ = (
        ("index", ctypes.c_uint32),
        ("last_index", ctypes.c_uint32),
        ("address", ctypes.c_uint32),
        ("port", ctypes.c_uint32),
        ("pod_bits", ctypes.c_uint32),
        ("nodes", NetworkStruct),
        ("pods", NetworkStruct),
        ("services", NetworkStruct),
        ("own_pods", NetworkStruct),
        ("key", ctypes.c_uint8 * 32),
        ("listener", ctypes.c_int),
        ("control", ctypes.c_int),
        ("fabric_sockets", ctypes.c_int),
        ("pass_through", ctypes.c_int),
    )


@cache
def load() -> ctypes.CDLL:
    """The library. LibraryError if it was not built, or from other sources."""
    library = c_library.load(LIBRARY, c_library.sources(SOURCES))
    library.serve.argtypes, library.serve.restype = (ctypes.c_void_p, ctypes.POINTER(NodeStruct)), None
    library.memory_size.argtypes, library.memory_size.restype = (), ctypes.c_size_t
    return library
