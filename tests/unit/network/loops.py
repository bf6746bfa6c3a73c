"""Both packet loops, for tests that run with each of them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pinnace.network import native_packet_loop
from pinnace.network.addresses import choose
from pinnace.network.native_packet_loop import NativePacketLoop
from pinnace.network.packet_loop import PythonPacketLoop

if TYPE_CHECKING:
    from pinnace.network.addresses import Ranges
    from pinnace.network.packet_loop import PacketLoop

KINDS = ["python", "native"]
RANGES = choose([])


def make_loop(kind: str, *tuns: int, ranges: Ranges = RANGES) -> PacketLoop:
    """A loop over descriptors that stand for the queues of a TUN device."""
    if kind == "python":
        return PythonPacketLoop(tuns)
    if not shutil.which("cc"):
        pytest.skip("the library was not built: there is no compiler")
    return NativePacketLoop(native_packet_loop.load(), tuns, ranges)
