"""An HTTPS server on a node for one client on the head: the API server, or metrics-server."""

from __future__ import annotations

import ssl
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from pinnace.spec import HEAD

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from _typeshed import StrPath

    from pinnace.spec import NodeSpec


class OneClientServer(ThreadingHTTPServer):
    """Serves one client address. Pods can reach the port too, and would cost us a thread for each connection."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], client: str) -> None:
        super().__init__(address, handler)
        self._client = client

    def verify_request(self, _request: object, client_address: Any) -> bool:
        return bool(client_address[0] == self._client)


def common_name(connection: ssl.SSLSocket) -> str:
    subject = (connection.getpeercert() or {}).get("subject", ())
    return next((str(part[1]) for parts in subject for part in parts if part[0] == "commonName"), "")


def server_context(authority: StrPath, certificate: StrPath, key: StrPath) -> ssl.SSLContext:
    """Clients have to have a certificate of the cluster's."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    return context


def serve(handler: type[BaseHTTPRequestHandler], node: NodeSpec, port: int) -> None:
    """Serve for ever, with the kubelet's certificate. The handler checks the client's ``common_name``."""
    certificate, key = (node.secret(f"node-{node.name}.{suffix}") for suffix in ("crt", "key"))
    context = server_context(node.secret("ca.crt"), certificate, key)
    server = OneClientServer((node.address, port), handler, str(node.cluster.ranges.node(HEAD)))
    # Each connection's own thread does the TLS handshake, so that a slow one does not block the others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()
