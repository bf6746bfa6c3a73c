"""Many TCP connections over one pair of byte streams, such as the standard streams of a job step.

    kind (1 byte)   stream (4)   length (2)   payload

Every stream has a window: its sender stops after ``WINDOW`` bytes that the receiver has not passed on yet. So a
connection whose reader is slow holds up nobody else, and memory is bounded. One end opens streams, the other connects
each to the address that it names.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
    Connect = Callable[[str], Awaitable[Connection]]

HEADER = struct.Struct("!BIH")
CREDIT = struct.Struct("!I")
CHUNK = 32 << 10  # bytes of data in a frame at most
WINDOW = 512 << 10  # bytes of a stream that are on their way at most
MAX_STREAMS = 256
PING_INTERVAL = 15.0  # seconds
PONG_LIMIT = 45.0  # seconds without an answer after which the other end counts as gone


class FrameKind(IntEnum):
    """What a frame says. ``END`` is the end of one direction, as TCP's FIN; ``RESET`` is that of the stream."""

    OPEN = 1
    DATA = 2
    CREDIT = 3
    END = 4
    RESET = 5
    PING = 6
    PONG = 7


class ProtocolError(Exception):
    """The other end does not keep to the protocol."""


class _ResetError(Exception):
    """The other end has given the stream up."""


class _Stream:
    """The state of one connection on this side."""

    def __init__(self) -> None:
        self.credit = WINDOW  # bytes that may still be sent
        self.credited = asyncio.Event()
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()  # empty: the end; None: a reset
        self.waiting = 0  # bytes that came and were not passed on yet

    def add_credit(self, count: int) -> None:
        self.credit += count
        self.credited.set()

    def receive(self, data: bytes) -> None:
        self.waiting += len(data)
        if self.waiting > WINDOW:
            raise ProtocolError("more data than the window allows")
        self.incoming.put_nowait(data)


async def _refuse(target: str) -> Connection:
    raise ConnectionRefusedError(target)


class Multiplexer:
    """One end. ``connect`` makes the connection that the other end asks for; without it, all are refused."""

    def __init__(self, carrier: Connection, connect: Connect = _refuse) -> None:
        (self._reader, self._writer), self._connect = carrier, connect
        self._streams: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()  # asyncio's locks are fair: streams take turns, a frame each
        self._number = 0
        self._answered = asyncio.Event()

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._streams)

    async def run(self) -> None:
        """Pass frames on until the other end is gone. Then all connections are closed."""
        try:
            while True:
                header = await self._reader.readexactly(HEADER.size)
                kind, number, length = HEADER.unpack(header)
                self._receive(kind, number, await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            for stream in self._streams.values():
                stream.incoming.put_nowait(None)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def watch(self) -> None:
        """Return when the other end does not answer any more."""
        while True:
            self._answered.clear()
            try:
                async with asyncio.timeout(PONG_LIMIT):
                    await self._send(FrameKind.PING, 0)  # which waits, if nothing is taken there any more
                    await self._answered.wait()
            except OSError:  # a TimeoutError too
                return
            await asyncio.sleep(PING_INTERVAL)

    async def carry(self, target: str, connection: Connection) -> None:
        """Let the other end connect to ``target``, and join that connection with this one until both have ended."""
        if len(self._streams) >= MAX_STREAMS:
            connection[1].transport.abort()
            return
        self._number = self._number % 0xFFFFFFFF + 1
        while self._number in self._streams:
            self._number = self._number % 0xFFFFFFFF + 1
        self._streams[self._number] = stream = _Stream()
        await self._send(FrameKind.OPEN, self._number, target.encode())
        await self._join(self._number, stream, connection)

    # --- frames -------------------------------------------------------------------------------------------------

    async def _send(self, kind: FrameKind, number: int, payload: bytes = b"") -> None:
        async with self._sending:
            self._writer.write(HEADER.pack(kind, number, len(payload)) + payload)
            await self._writer.drain()

    def _soon(self, work: Awaitable[None]) -> None:
        """Do something without holding up the frames that follow."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case FrameKind.OPEN:
                self._open(number, payload.decode("ascii", errors="replace"))
            case FrameKind.PING:
                self._soon(self._send(FrameKind.PONG, 0))
            case FrameKind.PONG:
                self._answered.set()
            case FrameKind.DATA | FrameKind.CREDIT | FrameKind.END | FrameKind.RESET:
                if stream := self._streams.get(number):  # else it ended here while the frame was on its way
                    self._receive_of(stream, kind, payload)
            case _:
                raise ProtocolError(f"a frame of the unknown kind {kind}")

    def _receive_of(self, stream: _Stream, kind: FrameKind | int, payload: bytes) -> None:
        if kind == FrameKind.DATA:
            stream.receive(payload)
        elif kind == FrameKind.CREDIT:
            stream.add_credit(CREDIT.unpack(payload)[0])
        else:
            stream.incoming.put_nowait(b"" if kind == FrameKind.END else None)

    def _open(self, number: int, target: str) -> None:
        if number in self._streams or len(self._streams) >= MAX_STREAMS:
            self._soon(self._send(FrameKind.RESET, number))
            return
        self._streams[number] = stream = _Stream()
        self._soon(self._connect_and_join(number, stream, target))

    async def _connect_and_join(self, number: int, stream: _Stream, target: str) -> None:
        try:
            connection = await self._connect(target)
        except OSError:
            self._streams.pop(number, None)
            await self._send(FrameKind.RESET, number)
            return
        await self._join(number, stream, connection)

    # --- one stream ---------------------------------------------------------------------------------------------

    async def _join(self, number: int, stream: _Stream, connection: Connection) -> None:
        """Both directions, until both have ended or one has failed."""
        reader, writer = connection
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._send_from(reader, number, stream))
                directions.create_task(self._receive_into(writer, number, stream))
            writer.close()
        except* _ResetError:
            writer.transport.abort()
        except* OSError:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await self._send(FrameKind.RESET, number)
        finally:
            self._streams.pop(number, None)
            if not writer.is_closing():  # cancelled
                writer.transport.abort()

    async def _send_from(self, reader: asyncio.StreamReader, number: int, stream: _Stream) -> None:
        while data := await reader.read(CHUNK):
            left = memoryview(data)
            while left:
                while not stream.credit:
                    stream.credited.clear()
                    await stream.credited.wait()
                now, left = left[: stream.credit], left[stream.credit :]
                stream.credit -= len(now)
                await self._send(FrameKind.DATA, number, bytes(now))
        await self._send(FrameKind.END, number)

    async def _receive_into(self, writer: asyncio.StreamWriter, number: int, stream: _Stream) -> None:
        passed = 0
        while True:
            data = await stream.incoming.get()
            if data is None:
                raise _ResetError
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            stream.waiting -= len(data)
            passed += len(data)
            if passed >= WINDOW // 4:
                await self._send(FrameKind.CREDIT, number, CREDIT.pack(passed))
                passed = 0
