"""Who asks for ranks, with real processes and sockets."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.podjobs.ranks.peer import Peer, PeerError, read_environment

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def line(tmp_path: Path) -> Iterator[tuple[socket.socket, int]]:
    """A connection, and the process that made it; that process holds no end of it any more when it has ended."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        pid = os.fork()
        if pid == 0:
            mine = socket.socket(socket.AF_UNIX)
            mine.connect(str(tmp_path / "socket"))
            signal.pause()
            os._exit(0)
        accepted, _ = listener.accept()
        with accepted:
            yield accepted, pid
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def test_a_process_that_is_there(line: tuple[socket.socket, int]) -> None:
    peer = Peer.of(line[0])
    peer.require_alive()
    assert (peer.pid, peer.uid, peer.gid) == (line[1], os.getuid(), os.getgid())
    assert peer.is_described_by(Path(f"/proc/{line[1]}/status").read_text())
    peer.close()


def test_a_process_of_another_user_with_the_same_number(line: tuple[socket.socket, int]) -> None:
    peer = Peer.of(line[0])
    status = Path(f"/proc/{line[1]}/status").read_text()
    assert not peer.is_described_by(status.replace(f"Uid:\t{peer.uid}\t{peer.uid}", f"Uid:\t{peer.uid}\t4711"))
    assert not peer.is_described_by(status.replace(f"Gid:\t{peer.gid}\t{peer.gid}", f"Gid:\t{peer.gid}\t4711"))
    peer.close()


@pytest.mark.parametrize("reaped", [False, True])
def test_a_process_that_has_ended(line: tuple[socket.socket, int], *, reaped: bool) -> None:
    """Its number may be another's by now, so that nothing that is read by it counts."""
    peer = Peer.of(line[0])
    os.kill(line[1], signal.SIGKILL)
    os.waitid(os.P_PID, line[1], os.WEXITED | (0 if reaped else os.WNOWAIT))
    with pytest.raises(PeerError, match="has ended"):
        peer.require_alive()
    peer.close()


def test_a_process_that_had_ended_before_it_was_looked_at(line: tuple[socket.socket, int]) -> None:
    os.kill(line[1], signal.SIGKILL)
    os.waitpid(line[1], 0)
    with pytest.raises((PeerError, ProcessLookupError)):
        Peer.of(line[0]).require_alive()


def test_an_environment_that_is_none(tmp_path: Path) -> None:
    """Whoever asks chooses what it hands over: nothing that never ends, and nothing that never begins."""
    os.mkfifo(tmp_path / "fifo")
    for path in ("/dev/zero", str(tmp_path / "fifo"), str(tmp_path)):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(PeerError):
            read_environment(descriptor)
        os.close(descriptor)
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 1 << 40)
    descriptor = os.open(tmp_path / "large", os.O_RDONLY)
    with pytest.raises(PeerError, match="no end"):
        read_environment(descriptor)
    os.close(descriptor)
    descriptor = os.open("/proc/self/environ", os.O_RDONLY)
    assert read_environment(descriptor) == Path("/proc/self/environ").read_bytes()
    os.close(descriptor)
