"""The memory of the server of native sockets, which the agent keeps for it. Apart from what the server itself loads."""

from __future__ import annotations

import ctypes
import mmap
import struct

from pinnace.network.native import library

COUNTER = struct.Struct("=Q")


class SharedMemory:
    """What outlives the server: the calls that it has in hand, and the addresses that pods see."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, library.load().memory_size())

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def counters(self) -> dict[str, int]:
        """How many connections took which path."""
        return {
            name: COUNTER.unpack_from(self.map, number * COUNTER.size)[0]
            for number, name in enumerate(library.COUNTERS)
        }

    def ticks(self) -> int:
        """How often the server has looked at the time: at least ten times a second."""
        ticks: int = COUNTER.unpack_from(self.map, len(library.COUNTERS) * COUNTER.size)[0]
        return ticks
