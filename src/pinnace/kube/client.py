"""A client of the Kubernetes API in the standard library alone: one connection, JSON, one error for what is refused.

Two things can go wrong with a request. The API answers and refuses (``ApiError``, with the HTTP status), or there is no
answer (``API_UNREACHABLE``), be it for lack of credentials. ``API_FAILURES`` is both, for callers that go on without an
answer or ask again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pinnace.errors import ApiError, CredentialError
from pinnace.kube.access import Access
from pinnace.kube.nesting import loads

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path


API_UNREACHABLE = (OSError, http.client.HTTPException, CredentialError)
API_FAILURES = (ApiError, *API_UNREACHABLE)
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class ignoring:  # noqa: N801 - as contextlib.suppress
    """``with ignoring(404):`` ends the block, and goes on after it, if the API refuses with that HTTP status."""

    def __init__(self, *codes: int) -> None:
        self._codes = codes

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, ApiError) and error.code in self._codes


class Api:
    """The API server that a kubeconfig names, as that kubeconfig's user. Not for several threads at once."""

    def __init__(self, access: Path | Access, *, timeout: float = 10.0) -> None:
        self._access = access if isinstance(access, Access) else Access.from_document(json.loads(access.read_text()))
        address = urlsplit(self._access.server)
        self._host, self._port = address.hostname or "", address.port or 443
        self._prefix = address.path.rstrip("/")  # of an API server behind another
        self._name = self._access.name or self._host
        self._timeout = timeout
        self._context = self._access.context()
        self._connection: http.client.HTTPSConnection | None = None

    def _connect(self) -> http.client.HTTPSConnection:
        connection = _NamedConnection(self._name, self._host, self._port, timeout=self._timeout, context=self._context)
        connection.connect()
        return connection

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
        """Send a request. The answer, parsed if it is JSON; else its text. A lost connection is made anew once."""
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type, "Accept": "application/json"} | self._access.headers()
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = self._connect()
            try:
                self._connection.request(method, self._prefix + path, payload, headers)
                response = self._connection.getresponse()
                data = response.read()
                break
            except (http.client.HTTPException, ConnectionError, TimeoutError):
                self._connection.close()
                self._connection = None
                if attempt == 2:
                    raise
        try:
            document = loads(data)
        except ValueError:
            document = data.decode(errors="replace")
        if response.status >= 400:
            raise ApiError(response.status, document.get("message", "") if isinstance(document, dict) else document)
        return document

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def get_or_none(self, path: str) -> Any:
        """What is at a path; None if the API has nothing there."""
        with ignoring(http.HTTPStatus.NOT_FOUND):
            return self.get(path)
        return None

    def stream(self, path: str, *, idle: float | None = None) -> Iterator[str]:
        """Yield the lines of an answer that goes on, such as a followed log, from a connection of its own.

        ``idle`` seconds without a line raise TimeoutError: a peer that is gone does not always close the connection.
        """
        connection = self._connect()
        with contextlib.closing(connection):
            connection.request("GET", self._prefix + path, headers=self._access.headers())
            response = connection.getresponse()
            if response.status >= 400:
                raise ApiError(response.status, response.read().decode(errors="replace"))
            if connection.sock:
                connection.sock.settimeout(idle)
            for line in response:
                yield line.decode(errors="replace").rstrip("\n")

    def patch(self, path: str, body: object) -> Any:
        """Change an object by a JSON merge patch (RFC 7386)."""
        return self.request("PATCH", path, body, content_type=MERGE_PATCH)

    def strategic_patch(self, path: str, body: object) -> Any:
        """Change an object by a strategic merge patch, which merges lists such as conditions by their key."""
        return self.request("PATCH", path, body, content_type=STRATEGIC_MERGE_PATCH)

    def apply(self, path: str, body: object, *, manager: str) -> Any:
        """Create or change an object by server-side apply. The fields in ``body`` become this manager's."""
        return self.request("PATCH", f"{path}?fieldManager={manager}&force=true", body, content_type=APPLY_PATCH)

    def create(self, path: str, body: object) -> None:
        """Create an object unless there is one of that name."""
        with ignoring(http.HTTPStatus.CONFLICT):
            self.request("POST", path, body)

    def delete_if_there(self, path: str, body: object = None) -> Any:
        """Delete an object. The API's answer: the object, if finalizers keep it; None if there was none."""
        with ignoring(http.HTTPStatus.NOT_FOUND):
            return self.request("DELETE", path, body)
        return None

    def healthy(self, check: str) -> bool:
        """Whether a health check of the API server passes. It does not if there is no answer."""
        try:
            self.request("GET", check)
        except API_FAILURES:
            return False
        return True


class _NamedConnection(http.client.HTTPSConnection):
    """HTTPS to an address whose certificate is for another name."""

    def __init__(self, name: str, host: str, port: int, *, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._name, self._tls = name, context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def timestamp() -> str:
    """The present time as Kubernetes writes it: RFC 3339, in UTC."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
