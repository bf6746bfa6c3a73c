"""Requests and responses of 200 bytes between ordinary programs: a Python client, and a Python server with threads.

python3 ordinary.py serve PORT                            answer, over TCP and UDP
python3 ordinary.py tcp|connect|udp ADDRESS PORT COUNT    measure so many, one after the other; a tenth more come first

The modes and the result, a line of JSON in microseconds, are those of ``rr``, which does the same as fast as it can be
done. This runs by itself, on hosts and in containers.
"""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 200
ANSWER_LIMIT = 1.0  # seconds, of a datagram; then it is sent again


class TCPServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class Answer(socketserver.BaseRequestHandler):
    """Repeats what one connection asks."""

    def handle(self) -> None:
        while request := self.request.recv(SIZE, socket.MSG_WAITALL):
            self.request.sendall(request)


def serve_udp(server: socket.socket) -> None:
    while True:
        request, client = server.recvfrom(SIZE)
        server.sendto(request, client)


def serve(port: int) -> None:
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    datagrams.bind(("", port))
    threading.Thread(target=serve_udp, args=[datagrams], daemon=True).start()
    with TCPServer(("", port), Answer) as server:
        server.serve_forever()


def ask(connection: socket.socket) -> None:
    connection.sendall(bytes(SIZE))
    if len(connection.recv(SIZE, socket.MSG_WAITALL)) != SIZE:
        raise ConnectionError("the response is too short")


def ask_by_datagram(datagrams: socket.socket, number: int) -> None:
    request = number.to_bytes(8, "big", signed=True).ljust(SIZE, b"\0")
    answer = b""
    while answer != request:
        try:
            if not answer:
                datagrams.send(request)
            answer = datagrams.recv(SIZE)  # or a late one to a request before
        except TimeoutError:
            answer = b""


def connect_and_ask(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        ask(connection)


def client(mode: str, address: tuple[str, int]) -> Callable[[int], None]:
    """What is measured, by the number of the request."""
    if mode == "connect":
        return lambda _: connect_and_ask(address)
    if mode == "tcp":
        connection = socket.create_connection(address)
        return lambda _: ask(connection)
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    datagrams.settimeout(ANSWER_LIMIT)
    datagrams.connect(address)
    return lambda number: ask_by_datagram(datagrams, number)


def measure(request: Callable[[int], None], count: int) -> dict[str, float]:
    times = []
    for number in range(-(count // 10), count):
        begin = time.perf_counter()
        request(number)
        if number >= 0:
            times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    return {"median": round(times[count // 2], 1), "p99": round(times[count * 99 // 100], 1)}


def main() -> None:
    match sys.argv[1:]:
        case ["serve", port]:
            serve(int(port))
        case [mode, address, port, count]:
            print(json.dumps(measure(client(mode, (address, int(port))), int(count))), flush=True)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
