"""The far end of a tunnel, in a job step, and how the near end gets a carrier to it.

    near end ── srun ──► far end          stdin, stdout
    near end ◄── TCP ─── far end          if the far end can connect back; then the frames go this way

srun moves standard streams in pieces of a kilobyte. Where a firewall lets steps connect to srun at all, it lets them
connect to SrunPortRange: there the near end listens for a moment, and each proves to the other that it knows a secret
that has come by way of srun.

    python -m pinnace.network.tunnel       the far end
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pinnace.network import listening
from pinnace.network.handshake import NO_NODE, HandshakeError, Protocol, dialling, listener_name
from pinnace.network.handshake import listening as verifying
from pinnace.network.multiplexer import Multiplexer

if TYPE_CHECKING:
    from pinnace.network.handshake import Handshake
    from pinnace.network.listening import PortRange
    from pinnace.network.multiplexer import Connection

MAGIC = b"\npinnace tunnel 1\n"  # what comes before, such as the lines of a TaskProlog, is not ours
BUFFER = 1 << 20  # bytes that are read ahead
CALL_LIMIT = 3.0  # seconds in which the far end has connected back, or does not
CONNECT_LIMIT = 10.0  # seconds for a connection that is asked for
MAX_CALLERS = 16  # strangers at the near end's listener at a time
BACKLOG = 64


@dataclass(frozen=True, kw_only=True)
class CallBack:
    """Where the near end listens for the far end, and the secret by which they know each other."""

    port: int
    secret: str  # hexadecimal

    def name(self) -> bytes:
        """The listener's name in proofs. Its address is not known to the near end, which has many."""
        return listener_name(0, "", self.port)


async def prove(connection: Connection, handshake: Handshake) -> None:
    """Run a handshake over a connection."""
    reader, writer = connection
    with contextlib.suppress(StopIteration):
        send, wanted = next(handshake)
        while True:
            writer.write(send)
            await writer.drain()
            send, wanted = handshake.send(await reader.readexactly(wanted))


async def standard_streams() -> Connection:
    """Standard input and output of this process."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sys.stdout.buffer
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


# --- the far end ------------------------------------------------------------------------------------------------


async def far_end() -> None:
    """Connect to what the near end asks for, until it is gone."""
    reader, writer = await standard_streams()
    writer.write(MAGIC)
    await writer.drain()
    said = json.loads(await reader.readline())
    called = await _call(CallBack(**said)) if said else None
    writer.write(b"called\n" if called else b"here\n")
    await writer.drain()
    frames = asyncio.ensure_future(Multiplexer(called or (reader, writer), connect=_connect).run())
    ends = [frames, asyncio.ensure_future(reader.read())] if called else [frames]  # srun's end is that of its input
    _, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()


async def _call(call: CallBack) -> Connection | None:
    """Connect back to the host on which srun runs; None if that is not possible."""
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    try:
        async with asyncio.timeout(CALL_LIMIT):
            connection = await asyncio.open_connection(host, call.port, limit=BUFFER)
            await prove(connection, dialling(bytes.fromhex(call.secret), Protocol.TUNNEL, NO_NODE, call.name()))
    except (OSError, EOFError, HandshakeError):
        return None
    return connection


async def _connect(target: str) -> Connection:
    host, _, port = target.rpartition(":")
    async with asyncio.timeout(CONNECT_LIMIT):
        return await asyncio.open_connection(host, int(port), limit=BUFFER)


# --- the near end -----------------------------------------------------------------------------------------------


class TunnelError(Exception):
    """The far end did not start."""


async def reach_far_end(streams: Connection, ports: PortRange | None) -> Connection:
    """The carrier to a far end that was started: a connection that it makes back, or its standard ``streams``.

    ``ports`` is where it may be able to connect to.
    """
    stdout, stdin = streams
    try:
        await stdout.readuntil(MAGIC)
        async with _Caller() as caller:
            call = await caller.listen(ports)
            stdin.write(json.dumps(vars(call) if call else None).encode() + b"\n")
            await stdin.drain()
            if await stdout.readline() == b"called\n":
                return await asyncio.wait_for(caller.connection, CALL_LIMIT)
    except EOFError as error:
        raise TunnelError("the step has ended") from error
    except (OSError, asyncio.LimitOverrunError) as error:
        raise TunnelError(str(error) or "no answer") from error
    return streams


class _Caller:
    """The listener for a far end that connects back. It is closed once that has proved itself, or has not come."""

    def __init__(self) -> None:
        self.connection: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self._callers = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            self._server.close()
        self.connection.cancel()

    async def listen(self, ports: PortRange | None) -> CallBack | None:
        try:
            sock = listening.bind("0.0.0.0", ports, BACKLOG)  # noqa: S104 - srun does not say where it listens either
        except OSError:
            return None
        call = CallBack(port=sock.getsockname()[1], secret=secrets.token_hex(32))
        key = bytes.fromhex(call.secret)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._callers >= MAX_CALLERS:
                writer.transport.abort()
                return
            self._callers += 1
            try:
                async with asyncio.timeout(CALL_LIMIT):
                    await prove((reader, writer), verifying(key, lambda _: Protocol.TUNNEL, call.name()))
                if not self.connection.done():
                    self.connection.set_result((reader, writer))
            except (OSError, EOFError, HandshakeError):
                writer.transport.abort()
            finally:
                self._callers -= 1

        self._server = await asyncio.start_server(accepted, sock=sock, limit=BUFFER)
        return call


if __name__ == "__main__":
    asyncio.run(far_end())
