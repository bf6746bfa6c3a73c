"""What another user of the site runs against the ports of a cluster. Read as text, and run on a host of the bed.

python3 -c TEXT MODE COUNT SECONDS HOST:PORT

Holds COUNT connections to the port for so many seconds and makes anew those that are reset, no more than RATE a second.
MODE is what it does with them: `idle`, `trickle` (a byte a second), `garbage`, `hello` (the first message of a TLS
client), `mixed` (all of these), `churn` (ends each at once), `greedy` (asks for much and reads nothing), `half` (says a
byte, and that it will say no more) or `urgent` (has urgent data between others).
Says `ready` once all have been tried, and in the end how many were taken and lost.
"""

import contextlib
import os
import resource
import socket
import ssl
import sys
import time

RATE = 250  # connections made anew in a second
MODES = ("idle", "trickle", "garbage", "hello")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="kubernetes").do_handshake()
    return outgoing.read()


def first_words(mode: str, number: int) -> bytes:
    kind = MODES[number % len(MODES)] if mode == "mixed" else mode
    words = {"garbage": os.urandom(200), "hello": HELLO, "trickle": b"\x16", "greedy": b"much\n", "half": b"\x16"}
    return words.get(kind, b"")


def begin(address: tuple[str, int], mode: str, words: bytes) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(5)
    sock.connect(address)
    if words:
        sock.send(words)
    if mode == "half":
        sock.shutdown(socket.SHUT_WR)
    if mode == "urgent":
        for data, flag in ((b"before", 0), (b"!", socket.MSG_OOB), (b"after", 0)):
            sock.send(data, flag)
    sock.setblocking(False)
    return sock


def lost(sock: socket.socket, *, greedy: bool) -> bool:
    """Whether the other end has given a connection up."""
    if greedy:
        return False
    try:
        return sock.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def main(mode: str, count: int, seconds: float, address: tuple[str, int]) -> None:
    held: dict[int, socket.socket] = {}
    taken = gone = refused = 0
    ready = False
    begun = time.monotonic()
    deadline = begun + seconds
    while time.monotonic() < deadline:
        made = 0
        for number in range(count):
            if number in held or (ready and made >= RATE):
                continue
            try:
                held[number] = begin(address, mode, first_words(mode, number))
                taken += 1
            except OSError:
                refused += 1
            made += 1
            if mode == "churn" and number in held:
                held.pop(number).close()
        if not ready:
            say("ready")
            ready = True
        time.sleep(1)
        for number, sock in list(held.items()):
            if mode in {"trickle", "mixed"} and number % 4 == 1:
                with contextlib.suppress(OSError):
                    sock.send(b"x")
            if lost(sock, greedy=mode == "greedy"):
                held.pop(number).close()
                gone += 1
    say(f"taken {taken} lost {gone} refused {refused} held {len(held)} seconds {time.monotonic() - begun:.0f}")


HELLO = hello()
if __name__ == "__main__":
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    host, _, port = sys.argv[4].rpartition(":")
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), (host, int(port)))
