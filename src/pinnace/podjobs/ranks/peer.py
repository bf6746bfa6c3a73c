"""The process at the other end of a UNIX socket, identified by the kernel: the one that requests ranks.

The kernel records a peer's PID, user and group when it connects. After the process has ended, its PID may be reused,
perhaps by a process of another user. So what is read from /proc by that PID is valid only if the process is still
running afterwards, and if it has the recorded user and group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import struct
from dataclasses import dataclass

from pinnace.errors import PinnaceError

SO_PEERPIDFD = 77  # from Linux 6.5; see unix(7)
MAX_ENVIRONMENT_SIZE = 8 << 20  # bytes; the kernel allows a quarter of the stack limit, which gives 2 MiB on most hosts


class PeerError(PinnaceError):
    """The peer or its request cannot be determined reliably."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """``descriptor`` is a pidfd; ``uid`` and ``gid`` are effective. All are those at the time of connect(2)."""

    pid: int
    uid: int
    gid: int
    descriptor: int

    @staticmethod
    def of(sock: socket.socket) -> Peer:
        pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            (descriptor,) = struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))
        except ProcessLookupError:
            raise PeerError("whoever asked has ended") from None
        except OSError:  # an older kernel: the PID may have been reused already; only its user is checked
            descriptor = os.pidfd_open(pid)
        return Peer(pid=pid, uid=uid, gid=gid, descriptor=descriptor)

    def close(self) -> None:
        os.close(self.descriptor)

    def require_alive(self) -> None:
        """Raise PeerError unless the process is still running: then its PID was not reused in between."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        try:
            with contextlib.suppress(PermissionError):
                signal.pidfd_send_signal(self.descriptor, 0)
        except ProcessLookupError:
            raise PeerError("whoever asked has ended") from None
        if poll.poll(0):
            raise PeerError("whoever asked has ended")

    def is_described_by(self, status: str) -> bool:
        """Whether the text of a /proc/PID/status has the user and group of this peer."""
        fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in status.split("\n"))}
        return (int(fields["Uid"][1]), int(fields["Gid"][1])) == (self.uid, self.gid)


def read_environment(descriptor: int) -> bytes:
    """Read the descriptor that a peer passed as its /proc/self/environ: a regular file of bounded length."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise PeerError("the environment that was handed over is no file")
    content = b""
    while piece := os.pread(descriptor, 1 << 20, len(content)):
        content += piece
        if len(content) > MAX_ENVIRONMENT_SIZE:
            raise PeerError("the environment that was handed over has no end")
    return content
