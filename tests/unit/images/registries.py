"""Upstream's registry on this machine, with TLS and passwords or tokens; and what can happen on the way to it."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from pinnace.controlplane.pki import Authority, CertificateSubject
from pinnace.images import registry
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "user", "not-to-be-logged"
HASH = "$2b$04$zssD9f3zHx9BrUx6qrkAz.AjsC6jEVFQONA5BmQTL95qTFlmzFfO."
HERE = "127.0.0.1"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@dataclass(frozen=True, kw_only=True)
class Registry:
    port: int
    authority: Path
    log: Path
    scheme: str = "https"

    @property
    def host(self) -> str:
        return f"{HERE}:{self.port}"

    def get(self, path: str) -> bytes:
        """What the registry has, asked with the password."""
        url = f"{self.scheme}://{self.host}/v2/{path}"
        accepted = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"
        request = urllib.request.Request(url, headers={"Authorization": BASIC, "Accept": accepted})
        trust = ssl.create_default_context(cafile=self.authority) if self.scheme == "https" else None
        with urllib.request.urlopen(request, timeout=30, context=trust) as response:
            content: bytes = response.read()
        return content


def authority_in(directory: Path) -> Authority:
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority.create(directory)
    authority.issue(CertificateSubject(file="server", common_name="server", addresses=(HERE,)))
    return authority


@contextlib.contextmanager
def serving(binary: Path, directory: Path, *, auth: dict[str, Any], tls: bool = True) -> Iterator[Registry]:
    """Run it until the context ends. ``directory`` has the certificates of ``authority_in``."""
    with socket.create_server((HERE, 0)) as probe:
        port = probe.getsockname()[1]
    files = {"certificate": str(directory / "server.crt"), "key": str(directory / "server.key")}
    config = registry.config(str(directory / "data"), addr=f"{HERE}:{port}")
    config["storage"]["maintenance"] = {"uploadpurging": {"enabled": False}}
    config |= {"auth": auth} if auth else {}
    config["http"] |= {"tls": files} if tls else {}
    (directory / "config.json").write_text(json.dumps(config))
    log = directory / "log"
    with log.open("wb") as output:
        argv = registry.argv(str(binary), str(directory / "config.json"))
        process = subprocess.Popen(argv, stdout=output, stderr=output, env=registry.ENVIRONMENT)
    try:
        wait_until("the registry", lambda: listens(port) or process.poll() is not None, limit=60)
        assert process.poll() is None, log.read_text()
        scheme = "https" if tls else "http"
        yield Registry(port=port, authority=directory / "ca.crt", log=log, scheme=scheme)
    finally:
        process.terminate()
        process.wait(30)


def with_passwords(directory: Path) -> dict[str, Any]:
    (directory / "passwords").write_text(f"{USER}:{HASH}\n")
    return {"htpasswd": {"realm": "test", "path": str(directory / "passwords")}}


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HERE, port), timeout=5):
        return True
    return False


@contextlib.contextmanager
def token_server(directory: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """A server that gives tokens for the password, as big registries have. Gives the registry's setting, and scopes."""
    scopes: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            scopes.extend(query["scope"])
            if self.headers["Authorization"] != BASIC:
                self.send_error(401)
                return
            body = json.dumps({"token": token(directory, query["scope"][0])}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    with http.server.ThreadingHTTPServer((HERE, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        realm = f"https://{HERE}:{server.server_address[1]}/token"
        about = {"realm": realm, "service": "test", "issuer": "test", "rootcertbundle": str(directory / "ca.crt")}
        yield {"token": about}, scopes
        server.shutdown()


def token(directory: Path, scope: str) -> str:
    """A signed statement about what somebody may do (RFC 7519), in the form that registries understand."""
    key = serialization.load_pem_private_key((directory / "server.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)

    def pack(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    kind, name, actions = scope.split(":")
    now = int(time.time())
    pem = (directory / "server.crt").read_text().split("-----BEGIN CERTIFICATE-----")[1].split("-----END")[0]
    header = {"typ": "JWT", "alg": "ES256", "x5c": ["".join(pem.split())]}
    access = [{"type": kind, "name": name, "actions": actions.split(",")}]
    claims = {"iss": "test", "aud": "test", "sub": USER, "exp": now + 300, "nbf": now - 60, "iat": now, "jti": "1"}
    text = f"{pack(json.dumps(header).encode())}.{pack(json.dumps(claims | {'access': access}).encode())}"
    r, s = utils.decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{pack(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


@contextlib.contextmanager
def cutting(port: int, *, after: int, times: int) -> Iterator[int]:
    """A way to a port on which so many connections are cut after so many bytes. Gives its own port."""
    left = times
    guard = threading.Lock()

    def allowed(sent: int) -> bool:
        nonlocal left
        with guard:
            if sent <= after or not left:
                return True
            left -= 1
            return False

    def carry(source: socket.socket, target: socket.socket, *, count: bool) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sent += len(piece)
                if count and not allowed(sent):
                    break
                target.sendall(piece)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection((HERE, port)) as server:
            back = threading.Thread(target=carry, args=(server, client), kwargs={"count": False})
            back.start()
            carry(client, server, count=True)
            back.join()

    def accept() -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
                threads[-1].start()
        for thread in threads:
            thread.join(60)

    with socket.create_server((HERE, 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(60)
