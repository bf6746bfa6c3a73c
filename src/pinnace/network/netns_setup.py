"""Sets up a node's network namespace: TUN device, routes, sysctls, nftables. The caller is in that namespace."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.network import rtnetlink
from pinnace.network.fabric import interfaces, nft_rules, sysctls
from pinnace.network.splice import BACKLOG
from pinnace.network.tun import open_tun, queue_count

if TYPE_CHECKING:
    from pinnace.network.addresses import Ranges

ADMINISTRATORS_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


def add_sbin_to_path() -> None:
    """Add the directories of `nft` to PATH; they are often missing in that of users."""
    path = os.environ.get("PATH", "/usr/bin:/bin").split(":")
    os.environ["PATH"] = ":".join([*path, *(place for place in ADMINISTRATORS_PATH if place not in path)])


def set_up_netns(ranges: Ranges, index: int, last_group: int) -> tuple[list[int], socket.socket]:
    """Make interfaces, routes and rules. Returns the descriptors of the TUN device's queues, and the egress listener.

    TCP connections to the outside are redirected to the egress listener. ``last_group`` is the highest group ID of the
    node; all groups may use ICMP echo sockets.
    """
    tuns = open_tun(queues=queue_count())
    rtnetlink.apply(interfaces(ranges, index))
    for name, value in sysctls(last_group).items():
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/sys", name).write_text(value)
    egress_listener = socket.create_server(("0.0.0.0", 0), backlog=BACKLOG)  # noqa: S104 - of the fabric's own namespace
    load_rules(nft_rules(ranges, index, egress_listener.getsockname()[1]))
    return tuns, egress_listener


def load_rules(text: str) -> None:
    """Give nftables a text to read, in the namespace that we are in."""
    argv = ["nft", "-f", "-"]
    try:
        result = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        raise RuntimeError("there is no nft on this host") from None
    if result.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {result.stderr.strip()}")
