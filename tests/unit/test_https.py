"""Redirects: nobody is led from HTTPS to where others can change what is read."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pinnace.components import download
from pinnace.errors import ComponentError, RegistryError, UsageError
from pinnace.images.credentials import Credentials
from pinnace.images.remote import Remote
from unit.images.registries import authority_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 10.0


class Handler(http.server.BaseHTTPRequestHandler):
    """Leads everybody to another address, if it was given one; notes what it was asked with."""

    def __init__(self, target: str, asked: list[str], *words: object) -> None:
        self.target, self.asked = target, asked
        super().__init__(*words)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization", ""))
        self.send_response(302 if self.target else 200)
        self.send_header("Location", self.target)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"evil")

    do_HEAD = do_POST = do_GET  # noqa: N815 - the names are the library's

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(
    target: str = "", *, address: str = "127.0.0.1", tls: Path | None = None
) -> Iterator[tuple[str, list[str]]]:
    """An address, and with what it was asked."""
    asked: list[str] = []
    with http.server.ThreadingHTTPServer((address, 0), partial(Handler, target, asked)) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.crt", tls / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://{address}:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join(LIMIT)


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a server's certificate that this process trusts."""
    authority_in(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls" / "ca.crt"))
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "tls"


def test_a_download_is_not_led_from_https_to_http(tls: Path) -> None:
    with serving() as (plain, asked), serving(f"{plain}/etcd", tls=tls) as (safe, _):
        with pytest.raises(ComponentError, match=r"refusing to follow .* it is not HTTPS"):
            download.read_small(f"{safe}/etcd")
        assert not asked


def test_a_download_is_led_to_other_places_with_https(tls: Path) -> None:
    with serving(tls=tls) as (target, _), serving(f"{target}/etcd", tls=tls) as (safe, _):
        assert download.read_small(f"{safe}/etcd") == b"evil"


@pytest.mark.parametrize("where", ["http://127.0.0.2:1/x", "ftp://127.0.0.1/x"])
def test_a_mirror_on_this_machine_leads_to_no_other(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(download, "STALL_TIMEOUT", 2.0)
    with serving(where) as (mirror, _):
        monkeypatch.setenv("PINNACE_RELEASE_MIRROR", mirror)
        with pytest.raises(ComponentError, match=r"refusing to follow|302"):
            download.read_small("https://upstream.invalid/etcd")


@pytest.mark.parametrize("mirror", ["http://mirror.invalid", "ftp://127.0.0.1", "file:///etc", "127.0.0.1"])
def test_a_mirror_has_https(monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    monkeypatch.setenv("PINNACE_RELEASE_MIRROR", mirror)
    with pytest.raises(UsageError, match="not HTTPS"):
        download.read_small("https://upstream.invalid/etcd")


def test_a_registry_leads_nobody_from_https_to_http_nor_a_password_elsewhere(tls: Path) -> None:
    mine = Credentials(source="test", user="user", password="not-for-others")  # noqa: S106
    with serving() as (plain, asked), serving(f"{plain}/v2/", tls=tls) as (safe, _):
        remote = Remote(safe.removeprefix("https://"), "a", mine)
        with pytest.raises(RegistryError, match="not HTTPS"):
            remote.log_in()
        assert not asked
    with serving(tls=tls) as (target, asked), serving(f"{target}/v2/", tls=tls) as (safe, _):
        remote = Remote(safe.removeprefix("https://"), "a", mine)
        remote._authorization = mine.basic
        remote.log_in()
        assert asked == [""], "the other place is asked without it"
