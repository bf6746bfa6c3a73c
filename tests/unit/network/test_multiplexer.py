"""Many connections over one pair of streams: all of them whole, none held up by another, all closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from pinnace.network import multiplexer
from pinnace.network.multiplexer import HEADER, WINDOW, FrameKind, Multiplexer, ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pinnace.network.multiplexer import Connection

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

BIG = 4 * WINDOW + 12345


opened: list[asyncio.StreamWriter] = []


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test, and close all connections that it has left open."""

    async def whole() -> None:
        try:
            await test()
        finally:
            for writer in opened:
                writer.transport.abort()
            opened.clear()
            await asyncio.sleep(0.01)

    asyncio.run(whole())


async def joined() -> tuple[Connection, Connection]:
    """Both ends of a connection."""
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *ends: accepted.set_result(ends), "127.0.0.1", 0)
    near = await asyncio.open_connection(*server.sockets[0].getsockname())
    server.close()
    far = await accepted
    opened.extend((near[1], far[1]))
    return near, far


@contextlib.asynccontextmanager
async def tunnel(handler: Handler) -> AsyncIterator[tuple[str, Multiplexer, Connection]]:
    """Where clients connect, the near end, and the near end's carrier; behind the far end is ``handler``."""
    near_carrier, far_carrier = await joined()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await handler(reader, writer)

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()

    async def connect(target: str) -> Connection:
        name, number = target.split(":")
        return await asyncio.open_connection(name, int(number))

    near, far = Multiplexer(near_carrier), Multiplexer(far_carrier, connect)
    running = [asyncio.ensure_future(end.run()) for end in (near, far)]
    try:
        yield f"{host}:{port}", near, near_carrier
    finally:
        near_carrier[1].close()
        await asyncio.gather(*running)
        server.close()


async def client(near: Multiplexer, target: str) -> Connection:
    """A connection that goes through the tunnel."""
    ours, theirs = await joined()
    carried = asyncio.ensure_future(near.carry(target, theirs))
    carried.add_done_callback(lambda task: task.cancelled() or task.exception())
    return ours


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_every_byte_arrives_and_each_direction_ends_by_itself() -> None:
    sent = os.urandom(BIG)

    async def one(near: Multiplexer, target: str) -> bool:
        reader, writer = await client(near, target)

        async def send() -> None:
            writer.write(sent)
            writer.write_eof()
            await writer.drain()

        _, got = await asyncio.gather(send(), reader.read(-1))
        writer.close()
        return got == sent

    async def test() -> None:
        async with tunnel(echo) as (target, near, _):
            assert await asyncio.gather(*(one(near, target) for _ in range(8))) == [True] * 8
            async with asyncio.timeout(5):
                while near.count:
                    await asyncio.sleep(0.01)

    run(test)


def test_a_client_that_does_not_read_holds_up_nobody_and_fills_no_memory() -> None:
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (flood if await reader.readline() == b"flood\n" else echo)(reader, writer)

    async def test() -> None:
        async with tunnel(first) as (target, near, _):
            slow = await client(near, target)
            slow[1].write(b"flood\n")
            reader, writer = await client(near, target)
            writer.write(b"echo\n")
            before = -1
            while before != sent or not sent:  # until the flood has stopped
                before = sent
                for _ in range(20):
                    writer.write(b"ping")
                    assert await asyncio.wait_for(reader.readexactly(4), 5) == b"ping"
                    await asyncio.sleep(0.01)
            assert sent < WINDOW + (64 << 20)  # the kernel's buffers have their share
            slow[1].transport.abort()
            writer.close()

    run(test)


def test_what_cannot_be_reached_is_closed_at_once() -> None:
    async def test() -> None:
        async with tunnel(echo) as (target, near, _):
            reader, writer = await client(near, "127.0.0.1:1")
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            reader, writer = await client(near, target)  # and others go on
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            writer.close()

    run(test)


def test_all_connections_end_with_the_carrier() -> None:
    async def test() -> None:
        async with tunnel(echo) as (target, near, carrier):
            reader, writer = await client(near, target)
            writer.write(b"x")
            await reader.readexactly(1)
            carrier[1].transport.abort()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()

    run(test)


def test_an_end_that_does_not_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplexer, "PONG_LIMIT", 0.1)

    async def test() -> None:
        near, _silent = await joined()
        await asyncio.wait_for(Multiplexer(near).watch(), 5)
        near[1].write(bytes(64 << 20))  # and one that does not even take what is sent
        await asyncio.wait_for(Multiplexer(near).watch(), 5)

    run(test)


@pytest.mark.parametrize(
    "frames",
    [
        HEADER.pack(99, 1, 0),
        HEADER.pack(FrameKind.OPEN, 1, 3) + b"a:1" + (HEADER.pack(FrameKind.DATA, 1, 60000) + bytes(60000)) * 20,
    ],
)
def test_who_does_not_keep_to_the_protocol_is_left(frames: bytes) -> None:
    async def never(_: str) -> Connection:
        await asyncio.sleep(60)
        raise AssertionError

    async def test() -> None:
        near, far = await joined()
        near[1].write(frames)
        with pytest.raises(ProtocolError):
            await asyncio.wait_for(Multiplexer(far, never).run(), 5)
        near[1].close()
        far[1].close()

    run(test)
