"""An HTTPS server for one client, identified by address and certificate: the API server, or metrics-server."""

from __future__ import annotations

import ssl
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler


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


def serve(
    handler: type[BaseHTTPRequestHandler], address: tuple[str, int], *, certificate: str, key: str, ca: str, client: str
) -> None:
    """Serve for ever. ``client`` is the client's address; the handler checks its ``common_name``."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    server = OneClientServer(address, handler, client)
    # Each connection's own thread does the TLS handshake, so that a slow one does not block the others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()
