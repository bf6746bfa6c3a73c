"""The service that has a registry only while somebody wants it, with an HTTP server in place of the registry."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.errors import NodeError
from pinnace.node.forking import fork
from pinnace.node.services.registry import serve
from pinnace.node.supervisor import Command
from testbed.errors import WaitError
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HERE = "127.0.0.1"
HTTP_SERVER = """
import functools, http.server, socketserver, sys
class Server(socketserver.ThreadingUnixStreamServer):
    def get_request(self):
        return super().get_request()[0], ("a client", 0)
socket, directory = sys.argv[1:]
Server(socket, functools.partial(http.server.SimpleHTTPRequestHandler, directory=directory)).serve_forever()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HERE, 0)) as made:
        yield made


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "registry.sock")


@pytest.fixture
def backend(tmp_path: Path, address: str) -> Command:
    return Command(argv=[sys.executable, "-c", HTTP_SERVER, address, str(tmp_path)], log=tmp_path / "log")


def answers(address: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        return True
    return False


def test_it_answers_whoever_came_first_and_ends_when_nobody_comes(
    tmp_path: Path, listener: socket.socket, backend: Command, address: str
) -> None:
    (tmp_path / "layer").write_bytes(os.urandom(3 << 20))
    child = fork(lambda: serve(listener, backend, address, idle_limit=0.5))
    clients = [http.client.HTTPConnection(HERE, listener.getsockname()[1], timeout=60) for _ in range(3)]
    for client in clients:
        client.connect()
    contents = []
    for client in clients:
        client.request("GET", "/layer")
        contents.append(client.getresponse().read())
        client.close()
    assert contents == [(tmp_path / "layer").read_bytes()] * 3
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not answers(address)


def test_it_stays_as_long_as_somebody_is_connected(listener: socket.socket, backend: Command, address: str) -> None:
    child = fork(lambda: serve(listener, backend, address, idle_limit=0.3))
    with socket.create_connection(listener.getsockname()):
        wait_until("the registry", lambda: answers(address), limit=60)
        with pytest.raises(WaitError):
            wait_until("its end", lambda: os.waitpid(child, os.WNOHANG)[0] == child, limit=1.5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_registry_that_ends_is_a_failure_with_its_last_words(
    tmp_path: Path, listener: socket.socket, address: str
) -> None:
    broken = Command(argv=["sh", "-c", "echo no such store >&2; exit 3"], log=tmp_path / "log")
    with pytest.raises(NodeError, match="exit code 3: no such store"):
        serve(listener, broken, address)


def test_it_ends_with_the_service(listener: socket.socket, backend: Command, address: str) -> None:
    child = fork(lambda: serve(listener, backend, address))
    wait_until("the registry", lambda: answers(address), limit=60)
    os.kill(child, 9)
    os.waitpid(child, 0)
    wait_until("the end of the registry", lambda: not answers(address), limit=60)
