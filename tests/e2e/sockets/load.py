"""Connections in numbers, and much data on one. Read as text, and run in pods.

python3 -c TEXT serve PORT                   gives lines back
python3 -c TEXT ask HOST PORT COUNT          connections one after another, a line on each
python3 -c TEXT many HOST PORT COUNT         so many at once, each of which carries lines while all others are open
python3 -c TEXT short HOST PORT COUNT        by eight threads, with a line on each; says which failed, how long 99 of
                                             100 took at most, and the slowest
python3 -c TEXT hold HOST PORT SECONDS       one connection and a line on it all the time; says the longest pause
python3 -c TEXT stream HOST PORT MEBIBYTES   to a responder and back from it, with checksums
"""

import asyncio
import collections
import hashlib
import json
import os
import resource
import socket
import sys
import threading
import time

LIMIT = 60
MODE, *WORDS = sys.argv[1:]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(port: int) -> None:
    async with await asyncio.start_server(echo, "0.0.0.0", port, backlog=4096) as server:  # noqa: S104
        await server.serve_forever()


async def ask(host: str, port: int, number: int, together: asyncio.Barrier | None = None) -> None:
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), LIMIT)
    for turn in range(2):
        line = f"{number} {turn}\n".encode()
        writer.write(line)
        got = await asyncio.wait_for(reader.readline(), LIMIT)
        assert got == line, (line, got)
        if together:
            await asyncio.wait_for(together.wait(), LIMIT)
    writer.close()


async def ask_in_turn(host: str, port: int, count: int) -> None:
    for number in range(count):
        await ask(host, port, number)


async def ask_at_once(host: str, port: int, count: int) -> None:
    together = asyncio.Barrier(count)
    await asyncio.gather(*(ask(host, port, number, together) for number in range(count)))


def short(host: str, port: int, count: int) -> None:
    failed: collections.Counter[str] = collections.Counter()
    numbers, spent = iter(range(count)), [0.0]
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            line, begin = f"{number}\n".encode(), time.monotonic()
            try:
                with socket.create_connection((host, port), timeout=LIMIT) as sock:
                    sock.sendall(line)
                    got = sock.recv(100)
                    if got != line:
                        failed[f"wrong: {got!r}" if got else "an end"] += 1
            except OSError as error:
                failed[type(error).__name__] += 1
            spent.append(time.monotonic() - begin)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    spent.sort()
    sys.stdout.write(json.dumps({"failed": failed, "usual": spent[len(spent) * 99 // 100], "slowest": spent[-1]}))


def hold(host: str, port: int, seconds: float) -> None:
    pause, count, end = 0.0, 0, time.monotonic() + seconds
    with socket.create_connection((host, port), timeout=LIMIT) as sock:
        sock.settimeout(2 * seconds + LIMIT)  # after a cut the kernel waits as long again until it sends again
        file = sock.makefile("rwb")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while time.monotonic() < end:
            begin, line = time.monotonic(), os.urandom(500).hex().encode() + b"\n"
            file.write(line)
            file.flush()
            assert file.readline() == line
            pause, count = max(pause, time.monotonic() - begin), count + 1
            time.sleep(0.005)
    sys.stdout.write(json.dumps({"count": count, "pause": pause}))


def stream(host: str, port: int, size: int) -> None:
    block = bytes(range(256)) * 4096  # a mebibyte
    expected = hashlib.sha256()
    with socket.create_connection((host, port), timeout=LIMIT) as sock:
        sock.sendall(b"digest\n")
        for _ in range(size):
            sock.sendall(block)
            expected.update(block)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while data := sock.recv(1 << 16):
            answer += data
    got_size, digest, _ = json.loads(answer)
    assert (got_size, digest) == (size << 20, expected.hexdigest())
    with socket.create_connection((host, port), timeout=LIMIT) as sock:
        sock.sendall(f"give {size << 20}\n".encode())
        got = hashlib.sha256()
        while data := sock.recv(1 << 18):
            got.update(data)
    assert got.hexdigest() == expected.hexdigest()


hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
match MODE:
    case "serve":
        asyncio.run(serve(int(WORDS[0])))
    case "ask":
        asyncio.run(ask_in_turn(WORDS[0], int(WORDS[1]), int(WORDS[2])))
    case "many":
        asyncio.run(ask_at_once(WORDS[0], int(WORDS[1]), int(WORDS[2])))
    case "short":
        short(WORDS[0], int(WORDS[1]), int(WORDS[2]))
    case "hold":
        hold(WORDS[0], int(WORDS[1]), float(WORDS[2]))
    case "stream":
        stream(WORDS[0], int(WORDS[1]), int(WORDS[2]))
