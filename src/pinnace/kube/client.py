"""A small client of the Kubernetes API, for the agent: the standard library alone, one connection, JSON."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pinnace.kube.access import Access
from pinnace.kube.nesting import loads

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path


class ApiError(Exception):
    """The API refused: its code and its own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """Speaks with the API server that a kubeconfig of ours names, or with any other."""

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
        """One request; what comes back as JSON, or text if it is none. A dropped connection is made anew once."""
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

    def stream(self, path: str, *, idle: float | None = None) -> Iterator[str]:
        """The lines of an answer that goes on, such as a log that is followed; on a connection of its own.

        A silence of ``idle`` seconds is an error, for those who would wait on a connection that nobody holds any more.
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
        """A merge patch."""
        return self.request("PATCH", path, body, content_type="application/merge-patch+json")

    def create(self, path: str, body: object) -> None:
        """Create an object; that it exists already is as good."""
        try:
            self.request("POST", path, body)
        except ApiError as error:
            if error.code != http.HTTPStatus.CONFLICT:
                raise

    def healthy(self, check: str) -> bool:
        """Whether a check of the API server passes; no if it does not answer."""
        try:
            self.request("GET", check)
        except (ApiError, OSError, http.client.HTTPException):
            return False
        return True


class _NamedConnection(http.client.HTTPSConnection):
    """HTTPS to an address whose certificate says another name."""

    def __init__(self, name: str, host: str, port: int, *, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._name, self._tls = name, context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def timestamp() -> str:
    """Now, as Kubernetes writes it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
