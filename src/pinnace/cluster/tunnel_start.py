"""Finding the tunnel to a cluster's head on this host, and starting it if it does not run (see ``tunnel``).

A tunnel has neither a file nor a socket in one: it is found by its address, and the kernel says whose it is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from pinnace.errors import AddressTakenError, ClusterError
from pinnace.interpreter import python_argv
from pinnace.network import socket_owner

READY = "ready"  # what a tunnel says when it can be used
TAKEN = "taken"  # or if it cannot listen
START_LIMIT = 90.0  # seconds until it has said something
FIND_LIMIT = 2.0  # seconds in which a tunnel that another command starts is to be seen
FIND_INTERVAL = 0.05  # seconds
END_LIMIT = 5.0  # seconds in which a tunnel that is ended, and its srun, have closed their log
MODULE = "pinnace.cluster.tunnel"
FIRST_PORT, LAST_PORT = 20000, 32767  # below those that the kernel gives to outgoing connections
TAIL_LINES = 5


@dataclass(frozen=True, kw_only=True)
class LocalAddress:
    """Where a tunnel listens: an address of the loopback network, and the port of the API there."""

    host: str
    port: int

    @staticmethod
    def random() -> LocalAddress:
        """One that nobody has: there are 2^24 addresses, and only a listener for all of them could be in the way."""
        host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
        return LocalAddress(host=host, port=FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT))

    @staticmethod
    def parse(text: str) -> LocalAddress:
        host, _, port = text.rpartition(":")
        return LocalAddress(host=host, port=int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def owner(self) -> int | None:
        """The user who listens there; None if nobody does."""
        return socket_owner.owner((self.host, self.port))


def log_path(directory: Path) -> Path:
    """What the tunnel of this host, and its srun, have to say."""
    return directory / "logs" / f"tunnel-{os.uname().nodename}.log"


def pid_path(directory: Path) -> Path:
    """The process of the tunnel on this host. A killed one leaves it: whoever reads it looks at the process."""
    return directory / "secrets" / f"tunnel-{os.uname().nodename}.pid"


def ensure(directory: Path, local: LocalAddress) -> None:
    """Return once the tunnel of a cluster listens on this host. Whoever connects before its step runs, waits."""
    if _is_ours(local):
        return
    said = _start(directory, local)
    if said == TAKEN:  # perhaps by a tunnel that another command of ours has started at the same moment
        deadline = time.monotonic() + FIND_LIMIT
        while not _is_ours(local):
            if time.monotonic() > deadline:
                raise AddressTakenError(f"another program has taken {local}")
            time.sleep(FIND_INTERVAL)
    elif said != READY:
        raise ClusterError(
            f"the cluster {directory.name} cannot be reached through Slurm: {said}",
            hint=f"Does the cluster run? See `pinnace list`, and {log_path(directory)}.",
        )


def end(directory: Path) -> None:
    """End this host's tunnel to a cluster that has ended, and wait for all who have its log open, such as its srun.

    It would end by itself, but not at once; and NFS keeps the directory of a file that is open.
    """
    log = log_path(directory.resolve())
    if not log.exists():
        return
    writers = _writers(log)
    if (pid := _running(directory)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END_LIMIT
    while not all(map(_has_ended, writers)) and time.monotonic() < deadline:
        time.sleep(FIND_INTERVAL)


def _running(directory: Path) -> int | None:
    """The process that ``pid_path`` names, if it is this cluster's tunnel and ours; None otherwise."""
    with contextlib.suppress(OSError, ValueError):
        process = Path("/proc") / str(int(pid_path(directory).read_text()))
        words = (process / "cmdline").read_text(errors="replace").split("\0")
        if process.stat().st_uid == os.getuid() and MODULE in words and str(directory) in words:
            return int(process.name)
    return None


def _writers(log: Path) -> list[Path]:
    """The processes of ours whose standard error is a file, as that of a tunnel and of its srun is their log."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [process] if (process / "fd/2").readlink() == log else []
    return found


def _has_ended(process: Path) -> bool:
    """Whether no thread of a process runs any more. Its files are closed then, and not when it shows none."""
    for thread in process.glob("task/*/stat"):
        with contextlib.suppress(OSError):
            if thread.read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX":
                return False
    return True


def _is_ours(local: LocalAddress) -> bool:
    """Whether our tunnel listens at an address. Raises if somebody else does."""
    owner = local.owner
    if owner not in {None, os.getuid()}:
        raise AddressTakenError(f"another program listens at {local}")
    return owner is not None


def _first_line(process: subprocess.Popen[bytes]) -> str:
    if process.stdout is None:
        return ""
    with process.stdout as pipe:
        readable, _, _ = select.select([pipe], [], [], START_LIMIT)
        return pipe.readline().decode().strip() if readable else f"no answer within {START_LIMIT:.0f} s"


def _start(directory: Path, local: LocalAddress) -> str:
    """Start a tunnel that outlives us. What it says: ``READY``, ``TAKEN``, or what is wrong."""
    argv = python_argv(MODULE, "--cluster", str(directory), "--listen", str(local))
    with log_path(directory).open("ab+") as log:
        begin = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd="/", start_new_session=True
        )
        said = _first_line(process)
        if said == READY:
            process.returncode = 0  # it is no child to be waited for
            return said
        process.terminate()
        process.wait()
        log.seek(begin)
        tail = log.read().decode(errors="replace").strip().splitlines()[-TAIL_LINES:]
    return said or "; ".join(tail) or f"its tunnel ended with {process.returncode}"
