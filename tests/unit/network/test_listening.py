"""One address, and ports of a range."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

import pytest

from pinnace.network.listening import PortRange, bind, host_address, interface_of, local_addresses

TABLE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.77.0.0/24 2 0 2
        |-- 10.77.0.0
           /24 link UNICAST
        |-- 10.77.0.11
           /32 host LOCAL
        |-- 10.77.0.255
           /32 link BROADCAST
Local:
        |-- 10.77.0.11
           /32 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
"""


def test_the_addresses_of_a_host() -> None:
    assert local_addresses(TABLE) == [IPv4Address("10.77.0.11"), IPv4Address("127.0.0.1")]


def test_the_address_in_the_network_that_was_chosen() -> None:
    assert host_address("anything", "127.0.0.0/8") == "127.0.0.1"
    with pytest.raises(OSError, match=r"no address in 198\.51\.100\.0/24"):
        host_address("anything", "198.51.100.0/24")


def test_the_address_of_a_device_and_the_device_of_an_address() -> None:
    assert host_address("anything", interface="lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert not interface_of("198.51.100.7")
    with pytest.raises(OSError, match="no device ib7 with an address"):
        host_address("anything", interface="ib7")


def test_a_name_that_leads_elsewhere_is_not_the_hosts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("198.51.100.7", 0))])
    assert host_address("anything") != "198.51.100.7"


def test_a_listener_is_at_its_address_alone() -> None:
    with bind("127.0.0.2", None, 8) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_all_ports_of_a_range_are_tried_and_then_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"no port of {number}-{number} is free at 127.0.0.1"):
            bind("127.0.0.1", PortRange(first=number, last=number), 8)
        wider = PortRange(first=number - 10, last=number + 10)
        with bind("127.0.0.1", wider, 8) as other:
            assert other.getsockname()[1] in set(range(number - 10, number + 11)) - {number}


@pytest.mark.parametrize("text", ["", "40000", "40100-40000", "80-90", "1-70000", "a-b", "40000-", "-40000", "²-³"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        PortRange.parse(text)


def test_a_range_as_a_user_writes_it() -> None:
    assert PortRange.parse("40000-40100") == PortRange(first=40000, last=40100)
    assert str(PortRange.parse("40000-40100")) == "40000-40100"
