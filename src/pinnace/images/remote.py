"""A registry somewhere, as the OCI distribution specification describes it: what a push needs of it."""

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

STALL = 60.0  # seconds without a byte
DIGESTING = 600.0  # seconds that a registry may think about what it was sent
ATTEMPTS = 3
PAUSE = 1.0  # seconds before the second attempt, doubled for the next
PIECE = 1 << 20
SMALL = 1 << 20  # bytes that an answer may have
PARAMETER = re.compile(r'(\w+)="([^"]*)"')
AGAIN = {429, 500, 502, 503, 504}


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: Message = field(repr=False)
    body: bytes

    @property
    def words(self) -> str:
        """What the registry says about it."""
        try:
            said = "; ".join(error.get("message") or error["code"] for error in json.loads(self.body)["errors"])
        except (ValueError, KeyError, TypeError, AttributeError):
            said = ""
        standard = http.client.responses.get(self.status, "")
        return f"{self.status} {standard}" + (f" ({said})" if said else "")


class BrokenOffError(Exception):
    """The connection could not be made, or did not last."""


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
        """Ask who we have to be, and become it."""
        answer = self._request("GET", f"{self._root}/v2/")
        if answer.status == http.HTTPStatus.NOT_FOUND:
            raise RegistryError(f"{self.registry} is no registry: it has no /v2/")
        if answer.status != http.HTTPStatus.OK:
            raise self._refused(answer)

    def has_blob(self, digest: str) -> bool:
        return self._request("HEAD", f"{self._at}/blobs/{digest}").status == http.HTTPStatus.OK

    def put_blob(self, digest: str, path: Path) -> None:
        """Send content. What breaks off is tried again, from its beginning."""
        size = path.stat().st_size
        last = ""
        for attempt in range(ATTEMPTS):
            time.sleep(PAUSE * attempt)
            try:
                begun = self._request("POST", f"{self._at}/blobs/uploads/", b"")
                if begun.status != http.HTTPStatus.ACCEPTED:
                    raise self._refused(begun)
                where = self._upload(begun, digest)
                done = self._once("PUT", where, lambda: pieces(path), {
                    "Content-Length": str(size), "Content-Type": "application/octet-stream",
                }, DIGESTING)  # fmt: skip
            except BrokenOffError as error:
                last = str(error)
                continue
            if done.status == http.HTTPStatus.CREATED:
                return
            if done.status not in AGAIN:
                raise self._refused(done)
            last = done.words
        raise RegistryError(
            f"sending {digest} to {self.registry} broke off {ATTEMPTS} times: {last}",
            hint="Run it again: what is there already is not sent again.",
        )

    def put_manifest(self, reference: str, media_type: str, content: bytes) -> None:
        """Let a digest or a tag mean this."""
        answer = self._request("PUT", f"{self._at}/manifests/{reference}", content, {"Content-Type": media_type})
        if answer.status != http.HTTPStatus.CREATED:
            raise self._refused(answer)

    @property
    def _at(self) -> str:
        return f"{self._root}/v2/{self.path}"

    def _upload(self, answer: Answer, digest: str) -> str:
        """Where the registry wants the content: an address of its own, to which we add what it is."""
        where = urllib.parse.urljoin(f"{self._root}/", answer.headers.get("Location", ""))
        parts = urllib.parse.urlsplit(where)
        self._check(where)
        query = [*urllib.parse.parse_qsl(parts.query, keep_blank_values=True), ("digest", digest)]
        return parts._replace(query=urllib.parse.urlencode(query)).geturl()

    def _request(
        self, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Ask, log in again if that has run out, and ask again if the registry is busy or out of reach."""
        answer = self._try(method, url, body, headers)
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            self._authorize(answer)
            answer = self._try(method, url, body, headers)
        if answer.status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            raise self._refused(answer)
        return answer

    def _try(self, method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        last = ""
        for attempt in range(ATTEMPTS):
            time.sleep(PAUSE * attempt)
            try:
                answer = self._once(method, url, (lambda: body) if body is not None else None, headers or {})
            except BrokenOffError as error:
                last = str(error)
                continue
            if answer.status not in AGAIN:
                return answer
            last = answer.words
        raise RegistryError(
            f"cannot reach {self.registry}: {last}", hint="Is its name right, and can this host reach it?"
        )

    def _once(
        self,
        method: str,
        url: str,
        body: Callable[[], bytes | Iterator[bytes] | None] | None,
        headers: dict[str, str],
        limit: float = STALL,
    ) -> Answer:
        self._check(url)
        request = urllib.request.Request(url, headers={"User-Agent": "pinnace"}, method=method)
        request.data = body() if body else None
        if self._authorization and url.startswith(f"{self._root}/"):  # nobody else is to see it
            headers = {"Authorization": self._authorization, **headers}
        for name, value in headers.items():
            request.add_unredirected_header(name, value)
        try:
            with https.opener(self._check).open(request, timeout=limit) as response:
                return Answer(status=response.status, headers=response.headers, body=response.read(SMALL))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(status=error.code, headers=error.headers, body=error.read(SMALL))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                host = urllib.parse.urlsplit(url).netloc
                raise RegistryError(
                    f"the certificate of {host} cannot be trusted: {reason.verify_message}",
                    hint="If your site's own authority has issued it, set SSL_CERT_FILE to a file with that authority.",
                ) from None
            raise BrokenOffError(str(reason) or type(reason).__name__) from error

    def _check(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" and not (self._plain and parts.scheme == "http" and is_loopback(parts.netloc)):
            raise RegistryError(f"{self.registry} leads to {url}, which is not HTTPS")

    def _authorize(self, answer: Answer) -> None:
        """Answer a challenge: with the password itself, or with a token that it gets us (see RFC 6750)."""
        kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
        wanted = dict(PARAMETER.findall(rest))
        mine = self._credentials
        if kind.lower() == "basic" and mine and not mine.identity_token:
            self._authorization = mine.basic
        elif kind.lower() == "bearer" and "realm" in wanted:
            self._authorization = f"Bearer {self._token(wanted)}"
        else:
            raise self._refused(answer)

    def _token(self, wanted: dict[str, str]) -> str:
        mine, self._authorization = self._credentials, ""
        about = {"service": wanted.get("service", ""), "scope": f"repository:{self.path}:pull,push"}
        headers = {}
        body = None
        url = f"{wanted['realm']}?{urllib.parse.urlencode(about)}"
        if mine and mine.identity_token:
            url = wanted["realm"]
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
            raise RegistryError(f"{wanted['realm']} gives no token") from None

    def _refused(self, answer: Answer) -> RegistryError:
        name = f"{self.registry}/{self.path}"
        if answer.status not in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            return RegistryError(f"{self.registry} does not take {name}: {answer.words}")
        hint = (
            f"Log in with `docker login {self.registry}` or `podman login {self.registry}`, or set REGISTRY_AUTH_FILE."
        )
        if not self._credentials:
            return RegistryError(f"{self.registry} wants to know who you are: {answer.words}", hint=hint)
        mine = self._credentials
        who = f"{mine.user!r} from {mine.source}" if mine.user else f"the login from {mine.source}"
        return RegistryError(f"{self.registry} does not let {who} write {name}: {answer.words}", hint=hint)


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def is_loopback(netloc: str) -> bool:
    host = urllib.parse.urlsplit(f"//{netloc}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
