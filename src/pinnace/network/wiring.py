"""The fabric's part of a node, made in the network namespace of whoever calls."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.network.fabric import ip_batch, nft_rules, sysctls
from pinnace.network.splice import BACKLOG
from pinnace.network.tun import open_tun

if TYPE_CHECKING:
    from pinnace.network.addresses import Ranges


def look_in_sbin() -> None:
    """`ip` and `nft` are where administrators look for them, and users often do not."""
    path = os.environ.get("PATH", "/usr/bin:/bin").split(":")
    os.environ["PATH"] = ":".join([*path, *(place for place in ("/usr/sbin", "/sbin") if place not in path)])


def wire(ranges: Ranges, index: int, last_group: int) -> tuple[int, socket.socket]:
    """Make interfaces, routes and rules. Gives the wire's descriptor, and the listener that is the way out.

    ``last_group`` is the highest group of the node, all of which may use echo sockets.
    """
    tun = open_tun()
    _feed(["ip", "-batch", "-"], ip_batch(ranges, index))
    for name, value in sysctls(last_group).items():
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/sys", name).write_text(value)
    way_out = socket.create_server(("0.0.0.0", 0), backlog=BACKLOG)  # noqa: S104 - of the fabric's own namespace
    _feed(["nft", "-f", "-"], nft_rules(ranges, index, way_out.getsockname()[1]))
    return tun, way_out


def _feed(argv: list[str], text: str) -> None:
    result = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=60)
    if result.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {result.stderr.strip()}")
