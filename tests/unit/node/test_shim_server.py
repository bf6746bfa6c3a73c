"""How a client has a command run elsewhere with its own streams: the real client, and a server without namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.node import shim_server
from pinnace.node.services import shim_client

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with shim_server.listen(tmp_path / "socket") as listener:
        yield listener


def client(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-I", "-S", shim_client.__file__, str(directory / "socket"), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=directory, env={"A": "b c"})


def accept(listener: socket.socket) -> socket.socket:
    listener.settimeout(10)
    return listener.accept()[0]


def test_only_the_owner_may_connect(listener: socket.socket) -> None:
    assert Path(listener.getsockname()).stat().st_mode & 0o777 == 0o600


def test_a_command_has_the_clients_words_streams_environment_and_directory(
    listener: socket.socket, tmp_path: Path
) -> None:
    """And the client has its exit code."""
    script = 'read word; echo "$word $A $1 $PWD"; echo broken >&2; exit 7'
    with client(tmp_path, "-c", script, "sh", "two words") as asking:
        assert asking.stdin
        asking.stdin.write("given\n")
        asking.stdin.flush()
        with accept(listener) as connection:
            request, streams = shim_server.receive(connection)
            shim_server.run_shim(connection, ["/bin/sh", *request["arguments"]], request, streams)
            for descriptor in streams:
                os.close(descriptor)
        output, errors = asking.communicate(timeout=10)
    assert (output, errors, asking.returncode) == (f"given b c two words {tmp_path}\n", "broken\n", 7)


def test_a_client_whose_server_has_died_fails_and_says_so(listener: socket.socket, tmp_path: Path) -> None:
    with client(tmp_path, "start") as asking:
        accept(listener).close()
        _, errors = asking.communicate(timeout=10)
    assert asking.returncode == 1
    assert "host's network" in errors


def test_somebody_who_passes_no_streams_gets_nothing(listener: socket.socket, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / "socket"))
        stranger.send(b"\n{}")
        stranger.shutdown(socket.SHUT_WR)
        with accept(listener) as connection, pytest.raises(OSError, match="streams"):
            shim_server.receive(connection)


def test_a_client_that_has_given_up_is_noticed(listener: socket.socket, tmp_path: Path) -> None:
    """One that waits for the answer has closed its own direction alone."""
    with client(tmp_path, "start") as asking, accept(listener) as connection:
        _, streams = shim_server.receive(connection)
        assert not shim_server.is_gone(connection)
        asking.kill()
        asking.wait(10)
        assert shim_server.is_gone(connection)
        for descriptor in streams:
            os.close(descriptor)


def test_a_command_has_no_descriptors_but_its_own() -> None:
    """In a process of its own: this one needs its descriptors."""
    script = (
        "import os; from pinnace.node.shim_server import close_others\n"
        "for number in (40, 41, 42, 700): os.dup2(0, number)\n"
        "close_others([42, 40])\n"
        "print(*(number for number in range(1024) if os.path.exists(f'/proc/self/fd/{number}')))"
    )
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30).stdout
    assert said == "0 1 2 40 42\n"
