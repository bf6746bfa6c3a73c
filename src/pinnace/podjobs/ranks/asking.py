"""Who asks for ranks: the process at the other end of a UNIX socket, as the kernel knows it.

The kernel notes a peer's process, user and groups when it connects. A process that connects and ends leaves its number
to another, perhaps one of another user; so everything that is read from /proc by that number counts only if the process
is still there afterwards, and if it has the user that the kernel noted.
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
MOST_ENVIRONMENT = 8 << 20  # bytes; the kernel allows a quarter of the stack's limit, which is 2 MiB on most hosts


class AskingError(PinnaceError):
    """It cannot be told for sure who asks, or what for."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """``descriptor`` is a pidfd, ``uid`` and ``gid`` are effective ones, all from the moment of the connection."""

    pid: int
    uid: int
    gid: int
    descriptor: int

    @staticmethod
    def of(line: socket.socket) -> Peer:
        pid, uid, gid = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            (descriptor,) = struct.unpack("i", line.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))
        except ProcessLookupError:
            raise AskingError("whoever asked has ended") from None
        except OSError:  # an older kernel: the number may have a new owner already, and its user is all that is checked
            descriptor = os.pidfd_open(pid)
        return Peer(pid=pid, uid=uid, gid=gid, descriptor=descriptor)

    def close(self) -> None:
        os.close(self.descriptor)

    def require_alive(self) -> None:
        """Fail unless the process runs: then its number was its own all the time."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        try:
            with contextlib.suppress(PermissionError):
                signal.pidfd_send_signal(self.descriptor, 0)
        except ProcessLookupError:
            raise AskingError("whoever asked has ended") from None
        if poll.poll(0):
            raise AskingError("whoever asked has ended")

    def is_described_by(self, status: str) -> bool:
        """Whether a /proc/PID/status has the user and group that connected."""
        fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in status.split("\n"))}
        return (int(fields["Uid"][1]), int(fields["Gid"][1])) == (self.uid, self.gid)


def read_environment(descriptor: int) -> bytes:
    """What a peer handed over as its /proc/self/environ: a file of some length, and not one that never ends."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise AskingError("the environment that was handed over is no file")
    content = b""
    while piece := os.pread(descriptor, 1 << 20, len(content)):
        content += piece
        if len(content) > MOST_ENVIRONMENT:
            raise AskingError("the environment that was handed over has no end")
    return content
