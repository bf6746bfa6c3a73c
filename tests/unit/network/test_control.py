"""Who may end a cluster: whoever knows its secret, and nobody else."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from pinnace.network.control import ask_to_stop
from pinnace.network.links import serve
from pinnace.network.packet_loop import PythonPacketLoop

SECRET = b"of this cluster"


def head(stopped: threading.Event) -> tuple[str, int]:
    """A link port, as a head has one."""
    listener = socket.create_server(("127.0.0.1", 0))
    nowhere = os.open("/dev/null", os.O_WRONLY)
    address, port = listener.getsockname()
    node: dict[str, Any] = {"index": 0, "address": address, "last_index": 254, "on_stop": stopped.set}
    node["loop"] = PythonPacketLoop([nowhere])
    threading.Thread(target=serve, args=(listener, SECRET), kwargs=node, daemon=True).start()
    return address, port


def test_the_user_is_heard() -> None:
    stopped = threading.Event()
    assert ask_to_stop(0, *head(stopped), SECRET)
    assert stopped.wait(5)


def test_a_stranger_is_not() -> None:
    stopped = threading.Event()
    assert not ask_to_stop(0, *head(stopped), b"of another")
    assert not stopped.wait(0.2)


def test_a_head_that_has_another_index_is_not_meant() -> None:
    stopped = threading.Event()
    assert not ask_to_stop(1, *head(stopped), SECRET)
    assert not stopped.wait(0.2)


def test_nobody_there_is_not_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert not ask_to_stop(0, "127.0.0.1", port, SECRET)
