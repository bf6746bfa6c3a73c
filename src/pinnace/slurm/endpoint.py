"""Addresses of servers that are called for somebody: slurmrestd, and what is beside it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from urllib.parse import urlsplit

from pinnace.errors import UsageError
from pinnace.validation import is_plain, printable

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A server: what of its address decides whether it is one that is allowed."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @staticmethod
    def parse(text: str, *, default: str = "http") -> Endpoint:
        """An address; without a scheme it is of the default one. Credentials and queries have no place in it."""
        if not is_plain(text) or " " in text or "\\" in text:
            raise UsageError(f"{printable(repr(text), 120)} is no address of a server")
        parts = urlsplit(text if "://" in text or text.startswith("unix:") else f"{default}://{text}")
        path = posixpath.normpath(f"/{parts.path.strip('/')}").rstrip("/")
        if parts.scheme == "unix" and path and not parts.netloc:
            return Endpoint(scheme="unix", path=path)
        try:
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            host, port = "", None
        if parts.scheme not in PORTS or not host or "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"{printable(repr(text), 120)} is no address of a server", hint="Such as http://slurm:6820."
            )
        return Endpoint(scheme=parts.scheme, host=host, port=port or PORTS[parts.scheme], path=path)

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.scheme == "unix" else f"{self.scheme}://{self.netloc}{self.path}"

    def covers(self, other: Endpoint) -> bool:
        """Whether the other is this server, at this path or below it."""
        if (self.scheme, self.host, self.port) != (other.scheme, other.host, other.port):
            return False
        below = self.scheme != "unix" and other.path.startswith(f"{self.path}/")
        return other.path == self.path or below
