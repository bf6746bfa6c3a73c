"""The other end of the probes (``probes.py``): does to a connection what its first line asks for. Read as text.

python3 -c TEXT [PORT]

It listens on PORT (7000) and, for connections of both families, on the next one. On a third one it listens and never
accepts, with a queue that it has filled, so that the kernel answers nobody there. A line may also ask it to dial back.
"""

import hashlib
import json
import socket
import struct
import sys
import threading
import time

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 7000
AT_ONCE = struct.pack("ii", 1, 0)
LIMIT = 15.0
seen: dict[str, object] = {}  # what became of a connection, by a name that its client chose


def read_to_end(sock: socket.socket) -> tuple[int, str, str]:
    """How many bytes there were, their checksum, and how it ended."""
    digest, size = hashlib.sha256(), 0
    try:
        while data := sock.recv(1 << 16):
            digest.update(data)
            size += len(data)
    except OSError as error:
        return size, digest.hexdigest(), type(error).__name__
    return size, digest.hexdigest(), "end"


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    sock.close()


def dial(host: str, port: int, what: str) -> object:
    """Connect to a probe that listens. What this side has seen."""
    with socket.create_connection((host, port), timeout=LIMIT) as sock:
        own = sock.getsockname()[:2]
        if what == "data":
            sock.sendall(b"x" * 100_000)
        elif what == "reset":
            reset(sock)
        elif what == "hello":
            sock.sendall(b"hello\n")
            return [own, sock.recv(100).decode()]
        elif what == "wait":
            return [own, *read_to_end(sock)]
        return [own]


def answer(sock: socket.socket, words: list[str]) -> None:
    match words:
        case ["seen", name]:
            until = time.monotonic() + 5
            while name not in seen and time.monotonic() < until:
                time.sleep(0.01)
            sock.sendall(json.dumps(seen.get(name)).encode())
        case ["dial", host, port, what]:
            try:
                said = dial(host, int(port), what)
            except OSError as error:
                said = type(error).__name__
            sock.sendall(json.dumps(said).encode())
        case _:
            transfer(sock, words)


def transfer(sock: socket.socket, words: list[str]) -> None:
    match words:
        case ["who"]:
            about = {"peer": sock.getpeername()[:2], "own": sock.getsockname()[:2]}
            sock.sendall(json.dumps(about).encode())
        case ["echo"]:
            while data := sock.recv(1 << 16):
                sock.sendall(data)
        case ["digest"]:
            sock.sendall(json.dumps(read_to_end(sock)).encode())
        case ["give", size]:
            block = bytes(range(256)) * 256
            for _ in range(int(size) // len(block)):
                sock.sendall(block)
        case ["finish", name]:  # says no more, and listens
            sock.sendall(b"bye")
            sock.shutdown(socket.SHUT_WR)
            seen[name] = read_to_end(sock)
        case ["note", name]:
            seen[name] = read_to_end(sock)
        case ["reset"]:
            sock.sendall(b"before")
            time.sleep(0.1)
            reset(sock)


def serve(sock: socket.socket) -> None:
    try:
        with sock:
            line = b""
            while not line.endswith(b"\n"):
                byte = sock.recv(1)
                if not byte:
                    return
                line += byte
            answer(sock, line.decode().split())
    except OSError:
        pass


def listen(family: int, port: int) -> None:
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("", port))
    listener.listen(1024)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def listen_and_never_accept(port: int) -> list[socket.socket]:
    listener = socket.socket()
    listener.bind(("", port))
    listener.listen(0)
    sockets = [listener]
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    return sockets


full = listen_and_never_accept(PORT + 2)
threading.Thread(target=listen, args=(socket.AF_INET6, PORT + 1), daemon=True).start()
sys.stdout.write("ready\n")
sys.stdout.flush()
listen(socket.AF_INET, PORT)
