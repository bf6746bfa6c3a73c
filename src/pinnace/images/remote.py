"""A client of remote registries (OCI distribution specification), as far as a push needs it."""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pinnace import https
from pinnace.errors import RegistryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from email.message import Message
    from pathlib import Path

    from pinnace.images.credentials import Credentials

STALL_TIMEOUT = 60.0  # seconds without a byte
UPLOAD_TIMEOUT = 600.0  # seconds that a registry may take to process a blob after it was sent
MAX_ATTEMPTS = 3
RETRY_PAUSE = 1.0  # seconds before the second attempt; twice that before the third
CHUNK_SIZE = 1 << 20
MAX_RESPONSE_SIZE = 1 << 20  # bytes that are read of a response
PARAMETER = re.compile(r'(\w+)="([^"]*)"')
RETRIED_STATUSES = {429, 500, 502, 503, 504}


@dataclass(frozen=True, kw_only=True)
class RegistryResponse:
    status: int
    headers: Message = field(repr=False)
    body: bytes

    @property
    def message(self) -> str:
        """The status and the registry's own error messages."""
        try:
            details = "; ".join(error.get("message") or error["code"] for error in json.loads(self.body)["errors"])
        except (ValueError, KeyError, TypeError, AttributeError):
            details = ""
        standard = http.client.responses.get(self.status, "")
        return f"{self.status} {standard}" + (f" ({details})" if details else "")


class ConnectionBrokenError(Exception):
    """The connection could not be made, or broke."""


class Remote:
    """One repository of a registry."""

    def __init__(self, registry: str, path: str, credentials: Credentials | None, *, plain: bool = False) -> None:
        if plain and not is_loopback(registry):
            raise UsageError(
                f"refusing to send to {registry} without TLS: it is not this machine",
                hint="Leave out --plain-http.",
            )
        host = "registry-1.docker.io" if registry == "docker.io" else registry
        self.registry = registry
        self.path = path
        self._plain = plain
        self._root = f"{'http' if plain else 'https'}://{host}"
        self._credentials = credentials
        self._authorization = ""

    def log_in(self) -> None:
        """Check that this is a registry, and authenticate."""
        answer = self._request("GET", f"{self._root}/v2/")
        if answer.status == http.HTTPStatus.NOT_FOUND:
            raise RegistryError(f"{self.registry} is no registry: it has no /v2/")
        if answer.status != http.HTTPStatus.OK:
            raise self._refused(answer)

    def has_blob(self, digest: str) -> bool:
        return self._request("HEAD", f"{self._at}/blobs/{digest}").status == http.HTTPStatus.OK

    def put_blob(self, digest: str, path: Path) -> None:
        """Upload a blob. A broken upload is tried again from its beginning."""
        size = path.stat().st_size
        last = ""
        for attempt in range(MAX_ATTEMPTS):
            time.sleep(RETRY_PAUSE * attempt)
            try:
                begun = self._request("POST", f"{self._at}/blobs/uploads/", b"")
                if begun.status != http.HTTPStatus.ACCEPTED:
                    raise self._refused(begun)
                where = self._upload(begun, digest)
                done = self._once("PUT", where, lambda: chunks(path), {
                    "Content-Length": str(size), "Content-Type": "application/octet-stream",
                }, UPLOAD_TIMEOUT)  # fmt: skip
            except ConnectionBrokenError as error:
                last = str(error)
                continue
            if done.status == http.HTTPStatus.CREATED:
                return
            if done.status not in RETRIED_STATUSES:
                raise self._refused(done)
            last = done.message
        raise RegistryError(
            f"sending {digest} to {self.registry} broke off {MAX_ATTEMPTS} times: {last}",
            hint="Run it again: what is there already is not sent again.",
        )

    def put_manifest(self, reference: str, media_type: str, content: bytes) -> None:
        """Upload a manifest or index under a digest or a tag."""
        answer = self._request("PUT", f"{self._at}/manifests/{reference}", content, {"Content-Type": media_type})
        if answer.status != http.HTTPStatus.CREATED:
            raise self._refused(answer)

    @property
    def _at(self) -> str:
        return f"{self._root}/v2/{self.path}"

    def _upload(self, answer: RegistryResponse, digest: str) -> str:
        """The URL of an upload: the registry's Location, with the digest added."""
        where = urllib.parse.urljoin(f"{self._root}/", answer.headers.get("Location", ""))
        parts = urllib.parse.urlsplit(where)
        self._check(where)
        query = [*urllib.parse.parse_qsl(parts.query, keep_blank_values=True), ("digest", digest)]
        return parts._replace(query=urllib.parse.urlencode(query)).geturl()

    def _request(
        self, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> RegistryResponse:
        """Send a request. Authenticate again if the token has expired; retry if the registry is busy or unreachable."""
        answer = self._try(method, url, body, headers)
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            self._authorize(answer)
            answer = self._try(method, url, body, headers)
        if answer.status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            raise self._refused(answer)
        return answer

    def _try(
        self, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> RegistryResponse:
        last = ""
        for attempt in range(MAX_ATTEMPTS):
            time.sleep(RETRY_PAUSE * attempt)
            try:
                answer = self._once(method, url, (lambda: body) if body is not None else None, headers or {})
            except ConnectionBrokenError as error:
                last = str(error)
                continue
            if answer.status not in RETRIED_STATUSES:
                return answer
            last = answer.message
        raise RegistryError(
            f"cannot reach {self.registry}: {last}", hint="Is its name right, and can this host reach it?"
        )

    def _once(
        self,
        method: str,
        url: str,
        body: Callable[[], bytes | Iterator[bytes] | None] | None,
        headers: dict[str, str],
        limit: float = STALL_TIMEOUT,
    ) -> RegistryResponse:
        self._check(url)
        request = urllib.request.Request(url, headers={"User-Agent": "pinnace"}, method=method)
        request.data = body() if body else None
        if self._authorization and url.startswith(f"{self._root}/"):  # other hosts must not see it
            headers = {"Authorization": self._authorization, **headers}
        for name, value in headers.items():
            request.add_unredirected_header(name, value)
        try:
            with https.opener(self._check).open(request, timeout=limit) as response:
                return RegistryResponse(
                    status=response.status, headers=response.headers, body=response.read(MAX_RESPONSE_SIZE)
                )
        except urllib.error.HTTPError as error:
            with error:
                return RegistryResponse(status=error.code, headers=error.headers, body=error.read(MAX_RESPONSE_SIZE))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                host = urllib.parse.urlsplit(url).netloc
                raise RegistryError(
                    f"the certificate of {host} cannot be trusted: {reason.verify_message}",
                    hint="If your site's own authority has issued it, set SSL_CERT_FILE to a file with that authority.",
                ) from None
            raise ConnectionBrokenError(str(reason) or type(reason).__name__) from error

    def _check(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" and not (self._plain and parts.scheme == "http" and is_loopback(parts.netloc)):
            raise RegistryError(f"{self.registry} leads to {url}, which is not HTTPS")

    def _authorize(self, answer: RegistryResponse) -> None:
        """Respond to a challenge: with the password itself, or with a token (see RFC 6750)."""
        kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
        challenge = dict(PARAMETER.findall(rest))
        mine = self._credentials
        if kind.lower() == "basic" and mine and not mine.identity_token:
            self._authorization = mine.basic
        elif kind.lower() == "bearer" and "realm" in challenge:
            self._authorization = f"Bearer {self._token(challenge)}"
        else:
            raise self._refused(answer)

    def _token(self, challenge: dict[str, str]) -> str:
        mine, self._authorization = self._credentials, ""
        about = {"service": challenge.get("service", ""), "scope": f"repository:{self.path}:pull,push"}
        headers = {}
        body = None
        url = f"{challenge['realm']}?{urllib.parse.urlencode(about)}"
        if mine and mine.identity_token:
            url = challenge["realm"]
            more = {"grant_type": "refresh_token", "refresh_token": mine.identity_token, "client_id": "pinnace"}
            body = urllib.parse.urlencode(about | more).encode()
        elif mine:
            headers["Authorization"] = mine.basic
        answer = self._try("POST" if body else "GET", url, body, headers)
        if answer.status != http.HTTPStatus.OK:
            raise self._refused(answer)
        try:
            document = json.loads(answer.body)
            return str(document.get("token") or document["access_token"])
        except (ValueError, KeyError):
            raise RegistryError(f"{challenge['realm']} gives no token") from None

    def _refused(self, answer: RegistryResponse) -> RegistryError:
        name = f"{self.registry}/{self.path}"
        if answer.status not in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            return RegistryError(f"{self.registry} does not take {name}: {answer.message}")
        hint = (
            f"Log in with `docker login {self.registry}` or `podman login {self.registry}`, or set REGISTRY_AUTH_FILE."
        )
        if not self._credentials:
            return RegistryError(f"{self.registry} wants to know who you are: {answer.message}", hint=hint)
        mine = self._credentials
        who = f"{mine.user!r} from {mine.source}" if mine.user else f"the login from {mine.source}"
        return RegistryError(f"{self.registry} does not let {who} write {name}: {answer.message}", hint=hint)


def chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_SIZE):
            yield chunk


def is_loopback(netloc: str) -> bool:
    host = urllib.parse.urlsplit(f"//{netloc}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
