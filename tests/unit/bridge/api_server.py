"""An API server as far as a bridge needs one: objects that are listed, watched, read and patched, over TLS.

It holds and sends the text of objects, so that they can be such as only other programs would write.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pinnace.controlplane.pki import Authority, CertificateSubject
from unit.storage.fake_api import merge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HERE = "127.0.0.1"


@dataclass
class ApiServer:
    """Objects by their paths, and the events of those that came later, by the paths of their lists."""

    kubeconfig: Path
    objects: dict[str, str] = field(default_factory=dict)
    events: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # paths, and the HTTP status of the answer
    asked: list[str] = field(default_factory=list)  # the paths of all that was read, with their queries
    version: int = 100
    ended: threading.Event = field(default_factory=threading.Event)

    def add(self, path: str, text: str) -> None:
        """Make an object of which those hear who watch."""
        self.objects[path] = text
        self.events.setdefault(path.rpartition("/")[0], []).append(f'{{"type": "ADDED", "object": {text}}}')

    def listing(self, path: str) -> str:
        items = ",".join(text for name, text in self.objects.items() if name.rpartition("/")[0] == path)
        return f'{{"metadata": {{"resourceVersion": "{self.version}"}}, "items": [{items}]}}'

    def patched(self, path: str, patch: dict[str, Any]) -> str:
        thing = json.loads(self.objects[path])
        self.version += 1
        merge(thing, patch)
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = json.dumps(thing)
        return self.objects[path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, api: ApiServer, *words: Any) -> None:
        self.api = api
        super().__init__(*words)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        self.api.asked.append(self.path)
        if "watch=true" in address.query:
            self.stream(self.api.events.setdefault(address.path, []))
        elif address.path in self.api.refused:
            self.answer(self.api.refused[address.path], json.dumps({"message": "refused"}))
        elif address.path in self.api.objects:
            self.answer(200, self.api.objects[address.path])
        elif address.path.endswith(("slurmjobs", "bridgejobs", "wlmjobs")):
            self.answer(200, self.api.listing(address.path))
        else:
            self.answer(404, json.dumps({"message": f"{address.path} not found"}))

    def do_PATCH(self) -> None:
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, self.api.patched(urlsplit(self.path).path.removesuffix("/status"), patch))

    def do_POST(self) -> None:
        thing = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        thing["metadata"] |= {"resourceVersion": "1", "uid": "made"}
        self.api.objects[f"{self.path}/{thing['metadata']['name']}"] = json.dumps(thing)
        self.answer(201, json.dumps(thing))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def stream(self, lines: list[str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while not self.api.ended.wait(0.05):
            for line in lines[sent:]:
                self.wfile.write(f"{len(line.encode()) + 1:x}\r\n{line}\n\r\n".encode())
                sent += 1

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[ApiServer]:
    """One whose certificates and kubeconfig are in a directory."""
    authority = Authority.create(directory)
    authority.issue(CertificateSubject(file="server", common_name="server", addresses=(HERE,)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    api = ApiServer(directory / "user.kubeconfig")
    with http.server.ThreadingHTTPServer((HERE, 0), partial(Handler, api)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        address = f"https://{HERE}:{server.server_port}"
        authority.issue_kubeconfig(CertificateSubject(file="user", common_name="user"), address, server_name=HERE)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield api
        finally:
            api.ended.set()
            server.shutdown()
