"""Lets the controller-manager go on a second earlier.

Before all else it asks whether the API server is healthy. That is so only a second after the API server serves, because
two of its hooks, which create roles and priority classes, wait for one before they look whether these are there. In a
cluster from a seed they are. So this first question comes to a server of ours, which asks the API server for all of its
checks but these two, and passes on what that says. From then on the port leads to the API server itself.

The controller-manager loses nothing if this does not work: it asks the API server once a second, as everywhere.
"""

from __future__ import annotations

import ssl
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pinnace.controlplane.one_client import common_name, server_context
from pinnace.errors import ApiError
from pinnace.kube.client import API_UNREACHABLE
from pinnace.network.netns_setup import load_rules
from pinnace.spec import API_PORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.kube.client import Api

LOOPBACK = "127.0.0.1"
PORT = 6444  # of LOOPBACK, in the head's network: by which the controller-manager reaches the API
CLIENT = "system:kube-controller-manager"
HEALTH = "/healthz"
HOOKS = ("rbac/bootstrap-roles", "scheduling/bootstrap-system-priority-classes")
EARLY_HEALTH = f"{HEALTH}?{'&'.join(f'exclude=poststarthook/{hook}' for hook in HOOKS)}"
QUESTION_LIMIT = 10.0  # seconds in which the controller-manager gives up, too
CLIENT_LIMIT = 1.0  # seconds that a client may be silent: there is one at a time


def kubeconfig(document: dict[str, Any]) -> dict[str, Any]:
    """The controller-manager's, by way of ``PORT``. The API server's certificate is for a name, not for an address."""
    clusters = [
        entry | {"cluster": entry["cluster"] | {"server": f"https://{LOOPBACK}:{PORT}"}}
        for entry in document["clusters"]
    ]
    return document | {"clusters": clusters}


def redirection() -> str:
    """For ``nft -f``: ``PORT`` leads to the API server."""
    rule = f"ip daddr {LOOPBACK} tcp dport {PORT} redirect to :{API_PORT}"
    return f"add rule ip pinnace outward_local {rule}\n"


class HealthServer(HTTPServer):
    """Answers the one question, by asking ``api``."""

    def __init__(self, api: Api, context: ssl.SSLContext, answered: Callable[[], None], port: int = PORT) -> None:
        super().__init__((LOOPBACK, port), HealthHandler)
        self.api, self.answered = api, answered
        self.done = False
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def serve_until(self, deadline: float) -> None:
        """Until the API was said to be healthy, or so long."""
        while not self.done and (left := deadline - time.monotonic()) > 0:
            self.timeout = left
            self.handle_request()

    def handle_error(self, *_: object) -> None:
        """A client that is not the controller-manager, or breaks off: the next one may be."""


class HealthHandler(BaseHTTPRequestHandler):
    """HTTP/1.0: each question has a connection of its own."""

    server: HealthServer
    timeout = CLIENT_LIMIT

    def do_GET(self) -> None:
        if not isinstance(self.connection, ssl.SSLSocket) or common_name(self.connection) != CLIENT:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif urlsplit(self.path).path != HEALTH:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self._answer(*self._ask())

    def _ask(self) -> tuple[int, str]:
        try:
            return HTTPStatus.OK, str(self.server.api.get(EARLY_HEALTH))
        except ApiError as error:
            return error.code, str(error)
        except API_UNREACHABLE as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, str(error)

    def _answer(self, code: int, text: str) -> None:
        if code == HTTPStatus.OK:
            self.server.done = True
            self.server.answered()
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


def serve(api: Api, secrets: Path, listening: Callable[[], None]) -> None:
    """Answer until the API was said to be healthy, then leave the port to the API server. Calls ``listening`` once.

    Where nobody can listen, the port is the API server's at once.
    """
    redirected = False

    def redirect() -> None:
        nonlocal redirected
        load_rules(redirection())
        redirected = True

    context = server_context(secrets / "ca.crt", secrets / "apiserver.crt", secrets / "apiserver.key")
    try:
        with HealthServer(api, context, redirect) as server:
            listening()
            server.serve_until(time.monotonic() + QUESTION_LIMIT)
    except OSError as error:
        print(f"nobody answers the controller-manager before the API server does: {error}", file=sys.stderr)  # noqa: T201
    finally:
        if not redirected:
            redirect()
