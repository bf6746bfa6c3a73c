"""The name in the first message of a real TLS client, and what is none."""

from __future__ import annotations

import contextlib
import os
import ssl

import pytest

from pinnace.network.tls import NotTlsError, server_name


def first_message(name: str | None) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def in_records(message: bytes, size: int) -> bytes:
    """The same first message, cut into records of this size."""
    body = message[5:]
    parts = [body[n : n + size] for n in range(0, len(body), size)]
    return b"".join(message[:3] + len(part).to_bytes(2) + part for part in parts)


@pytest.mark.parametrize("name", ["kubernetes", "0123456789abcdef.pinnace.internal"])
def test_the_name_that_a_client_asks_for(name: str) -> None:
    assert server_name(first_message(name)) == name
    assert server_name(first_message(name) + b"what follows") == name
    assert server_name(in_records(first_message(name), 100)) == name


def test_a_message_in_very_many_pieces_is_not_waited_for() -> None:
    """It would be put together anew whenever a byte comes."""
    for count in (20, 60, 2000):
        with pytest.raises(NotTlsError, match="too many pieces"):
            server_name(in_records(first_message("kubernetes"), 1)[: count * 6])


def test_a_client_may_ask_for_none() -> None:
    assert server_name(first_message(None)) == ""


def test_part_of_a_message_is_not_enough() -> None:
    whole = first_message("kubernetes")
    assert {server_name(whole[:count]) for count in range(1, len(whole))} == {None}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01\x00\x00" * 4,
        b"\x16\x03\x01\xff\xff" + bytes(99),
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        b"\x16\x03\x01\x00\x2c\x01\x00\x00\x28" + b"\xff" * 40,
    ],
)
def test_what_is_no_first_message_of_a_client(data: bytes) -> None:
    with pytest.raises(NotTlsError):
        server_name(data)


def test_no_input_makes_it_fail_in_another_way() -> None:
    whole = bytearray(first_message("kubernetes"))
    for _ in range(3000):
        spoiled = bytearray(whole)
        for position in os.urandom(8):
            spoiled[position % len(spoiled)] = os.urandom(1)[0]
        with contextlib.suppress(NotTlsError):
            server_name(bytes(spoiled))
