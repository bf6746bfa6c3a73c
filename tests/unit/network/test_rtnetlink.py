"""Interfaces and routes, as the kernel of this machine takes them."""

from __future__ import annotations

import json
import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network

import pytest

from pinnace.network import rtnetlink
from pinnace.network.rtnetlink import Address, LinkUp, Route

# In namespaces of its own, with a TUN device: what the kernel says of devices, addresses and routes afterwards.
SET_UP = """
import json, pathlib, socket
from pinnace.network import rtnetlink
from pinnace.network.addresses import choose
from pinnace.network.fabric import interfaces
from pinnace.network.tun import NAME, open_tun
kept = open_tun()
changes = interfaces(choose([]), 3)
rtnetlink.apply(changes)
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.connect(("198.51.100.1", 9))
    outward = sock.getsockname()[0]
device = pathlib.Path("/sys/class/net", NAME)
about = {name: int((device / name).read_text(), 0) for name in ("mtu", "tx_queue_len", "flags")}
try:
    rtnetlink.apply(changes[1:])
except RuntimeError as error:
    refused = str(error)
print(json.dumps([pathlib.Path("/proc/net/route").read_text(), about, outward, refused]))
"""


@pytest.fixture(scope="module")
def made() -> list[object]:
    # sysfs shows the network namespace in which it was mounted
    argv = ["unshare", "-Urmn", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$0" -c "$1"', sys.executable, SET_UP]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    found: list[object] = json.loads(result.stdout)
    return found


def test_the_device_is_up_with_its_size_and_queue(made: list[object]) -> None:
    about = made[1]
    assert isinstance(about, dict)
    assert (about["mtu"], about["tx_queue_len"], about["flags"] & rtnetlink.IFF_UP) == (65520, 2000, 1)


def test_routes_lead_through_it_but_for_the_nodes_own_pods(made: list[object]) -> None:
    """``/proc/net/route``: device, destination and gateway in hexadecimal digits of the machine's order, flags."""
    rows = [line.split() for line in str(made[0]).splitlines()[1:]]
    found = {(row[0], str(IPv4Address(bytes.fromhex(row[1])[::-1]))) for row in rows}
    assert found == {("wire0", "0.0.0.0"), ("wire0", "10.42.0.0"), ("wire0", "10.244.0.0"), ("*", "10.244.3.0")}  # noqa: S104
    assert made[2] == "10.42.0.4"


def test_what_the_kernel_refuses_is_named(made: list[object]) -> None:
    assert made[3] == "rtnetlink: Address(device='wire0', address=IPv4Address('10.42.0.4')): File exists"
    with pytest.raises(RuntimeError, match=r"LinkUp\(device='nowhere'.*no interface with this name"):
        rtnetlink.apply([LinkUp(device="nowhere")])


def test_messages_are_those_of_ip() -> None:
    """As strace(1) shows those of ``ip``, in our order; for the loopback device, whose index is 1 everywhere."""
    source = IPv4Address("10.42.0.4")
    assert Address(device="lo", address=source).encode() == (
        rtnetlink.RTM_NEWADDR,
        bytes.fromhex("02200000 01000000 08000200 0a2a0004 08000100 0a2a0004"),
    )
    assert Route(destination=IPv4Network("10.244.0.0/16"), device="lo", source=source).encode() == (
        rtnetlink.RTM_NEWROUTE,
        bytes.fromhex("02100000 fe03fd01 00000000 08000100 0af40000 08000400 01000000 08000700 0a2a0004"),
    )
    assert Route(destination=IPv4Network("10.244.3.0/24")).encode() == (
        rtnetlink.RTM_NEWROUTE,
        bytes.fromhex("02180000 fe030007 00000000 08000100 0af40300"),
    )
