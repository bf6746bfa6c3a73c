"""Whose a socket of this host is: the same from the kernel's answer and from its table."""

from __future__ import annotations

import os
import socket

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
