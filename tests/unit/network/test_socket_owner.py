"""Whose a socket of this host is: the same from the kernel's answer and from its table."""

from __future__ import annotations

import os
import socket

import pytest

from pinnace.network import socket_owner

ADDRESS = "127.91.17.3"


def test_both_ways_find_the_owner_of_a_listener_and_of_a_connection() -> None:
    with socket.create_server((ADDRESS, 0)) as listener:
        there = listener.getsockname()
        with socket.create_connection(there) as client:
            here = client.getsockname()
            table = socket_owner.TABLE.read_text()
            for owner in (socket_owner.owner, lambda *both: socket_owner.find(table, *both)):
                assert owner(there, socket_owner.ANY) == os.getuid()
                assert owner(here, there) == os.getuid()
                assert owner(here, (ADDRESS, 1)) is None
    assert socket_owner.owner(there) is None


def test_a_listener_for_all_addresses_counts() -> None:
    with socket.create_server((socket_owner.ANY[0], 0)) as listener:
        port = listener.getsockname()[1]
        assert socket_owner.owner((ADDRESS, port)) == os.getuid()
        assert socket_owner.find(socket_owner.TABLE.read_text(), (ADDRESS, port), socket_owner.ANY) == os.getuid()


def test_the_table_names_another_user() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 03115B7F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1234        0 77 1\n"
    )
    assert socket_owner.find(table, (ADDRESS, 8080), socket_owner.ANY) == 1234


def test_a_kernel_that_cannot_be_asked_is_no_host_without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers ENOENT for a family of which it has no handler, as for a socket that is not there."""
    monkeypatch.setattr(socket_owner, "FAMILY", socket.AF_APPLETALK)
    with socket.create_server((ADDRESS, 0)) as listener:
        there = listener.getsockname()
        with socket.create_connection(there) as client:
            assert socket_owner.owner(there) == os.getuid()
            assert socket_owner.owner(client.getsockname(), there) == os.getuid()
    assert socket_owner.owner(there) is None


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_APPLETALK])
def test_sockets_of_ipv6_that_have_addresses_of_ipv4(monkeypatch: pytest.MonkeyPatch, family: int) -> None:
    monkeypatch.setattr(socket_owner, "FAMILY", family)
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.socket(socket.AF_INET6) as client,
    ):
        there = (ADDRESS, listener.getsockname()[1])
        client.connect((f"::ffff:{ADDRESS}", there[1]))
        here = (client.getsockname()[0].removeprefix("::ffff:"), client.getsockname()[1])
        assert socket_owner.owner(there) == os.getuid()
        assert socket_owner.owner(here, there) == os.getuid()
        assert socket_owner.owner(here, (ADDRESS, 1)) is None
