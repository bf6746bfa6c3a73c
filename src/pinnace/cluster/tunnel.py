"""The near end of a tunnel: the head's ports, at a loopback address of this host, through a step of the cluster's job.

    python -m pinnace.cluster.tunnel --cluster DIRECTORY --listen ADDRESS:PORT

It serves connections of its own user alone. It says ``ready`` on standard output once the step runs, and ends with the
step, with the cluster's directory, or when nobody has used it for a while; whoever needs it next starts it again (see
``credential``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pinnace.cluster.head_step import running_head, step_argv
from pinnace.cluster.tunnel_start import READY, TAKEN, LocalAddress, pid_path
from pinnace.errors import ClusterError, SlurmError
from pinnace.interpreter import python_argv
from pinnace.network import socket_owner
from pinnace.network.listening import PortRange
from pinnace.network.multiplexer import Multiplexer, ProtocolError
from pinnace.network.tunnel import BUFFER, TunnelError, reach_far_end
from pinnace.sandbox.linux import die_with_parent
from pinnace.slurm.commands import Slurm
from pinnace.slurm.variables import submission_environment

if TYPE_CHECKING:
    from pinnace.spec import NodeRecord

Stream = TypeVar("Stream")

STEP_LIMIT = 60.0  # seconds until the step must have started
IDLE_LIMIT = 900.0  # seconds without a connection after which the tunnel ends
LOOK_INTERVAL = 10.0  # seconds between looks whether it is still needed
SRUN_PORTS = re.compile(r"^SrunPortRange\s*=\s*(\d+-\d+)\s*$", re.MULTILINE)


def srun_ports(config: str) -> PortRange | None:
    """Where steps may connect to srun's host, from what `scontrol show config` prints; None for anywhere."""
    found = SRUN_PORTS.search(config)
    return PortRange.parse(found[1]) if found and not found[1].startswith("0-") else None


class NearEnd:
    """The listeners, and the step that carries what comes there."""

    def __init__(self, directory: Path, head: NodeRecord, local: LocalAddress) -> None:
        self._directory, self._head, self._local = directory, head, local
        self._used = time.monotonic()

    def bind(self) -> list[tuple[socket.socket, str]]:
        """The listeners, each with where it leads to. Ports that are published are a convenience: one may be taken."""
        target = self._head.address
        listeners = [(_listen(self._local.host, self._local.port), f"{target}:{self._head.api}")]
        for port in self._head.published:
            with contextlib.suppress(OSError):
                listeners.append((_listen(self._local.host, port), f"{target}:{port}"))
        return listeners

    async def serve(self, listeners: list[tuple[socket.socket, str]]) -> None:
        """Start the step, say that it runs, and pass connections on until there is a reason to end."""
        argv = step_argv(self._head, self._directory, python_argv("pinnace.network.tunnel"))
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=BUFFER,
            env=submission_environment(os.environ),
            preexec_fn=_prepare_child,
        )
        try:
            async with asyncio.timeout(STEP_LIMIT):
                ports = await asyncio.to_thread(_srun_ports)
                carrier = await reach_far_end((_there(process.stdout), _there(process.stdin)), ports)
            tunnel = Multiplexer(carrier)
            for sock, target in listeners:
                await self._accept(tunnel, sock, target)
            pid_path(self._directory).write_text(f"{os.getpid()}\n")
            _say(READY)
            ends = [tunnel.run(), tunnel.watch(), self._until_unneeded(tunnel), process.wait()]
            tasks = [asyncio.ensure_future(end) for end in ends]
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # raises what it has raised
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(OSError):
                pid_path(self._directory).unlink()

    async def _accept(self, tunnel: Multiplexer, sock: socket.socket, target: str) -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            if socket_owner.owner(peer, own) != os.getuid():
                writer.transport.abort()
                return
            self._used = time.monotonic()
            with contextlib.suppress(OSError):
                await tunnel.carry(target, (reader, writer))
            self._used = time.monotonic()

        await asyncio.start_server(accepted, sock=sock, limit=BUFFER)

    async def _until_unneeded(self, tunnel: Multiplexer) -> None:
        while tunnel.count or time.monotonic() - self._used < IDLE_LIMIT:
            await asyncio.sleep(LOOK_INTERVAL)
            if not (self._directory / "cluster.json").exists():
                return


def _there(stream: Stream | None) -> Stream:
    """A standard stream of a process that was started with a pipe there."""
    if stream is None:
        raise TunnelError("no pipe")
    return stream


def _listen(host: str, port: int) -> socket.socket:
    """Listen at once: until the step runs, connections wait in the kernel, and a second tunnel sees that it is one."""
    return socket.create_server((host, port), backlog=128)


def _srun_ports() -> PortRange | None:
    try:
        return srun_ports(Slurm().cli("scontrol", "show", "config"))
    except SlurmError:
        return None


def _prepare_child() -> None:
    die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _say(line: str) -> None:
    """Tell whoever has started us, and nothing more after that."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinnace-tunnel")
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--listen", type=LocalAddress.parse, required=True)
    args = parser.parse_args(argv)
    try:
        near = NearEnd(args.cluster, running_head(args.cluster), args.listen)
        listeners = near.bind()
    except OSError as error:
        _say(TAKEN if error.errno == errno.EADDRINUSE else f"{args.listen}: {error}")
        return 1
    except ClusterError as error:
        _say(error.message)
        return 1
    try:
        asyncio.run(near.serve(listeners))
    except TimeoutError:
        sys.stderr.write(f"no answer within {STEP_LIMIT:.0f} s\n")
        return 1
    except (OSError, TunnelError, ProtocolError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
