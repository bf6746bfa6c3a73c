"""The first question of the controller-manager: real TLS, and an API that says what it is told to."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.controlplane import early_health
from pinnace.controlplane.early_health import CLIENT, EARLY_HEALTH, HealthServer, kubeconfig, redirection
from pinnace.controlplane.one_client import server_context
from pinnace.controlplane.pki import SERVER_NAME, create_control_plane
from pinnace.errors import ApiError
from pinnace.kube.access import Access
from pinnace.kube.client import Api
from pinnace.network.addresses import choose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEALTHY, UNHEALTHY = 200, 500


class ToldApi(Api):
    """Answers nothing but the one question."""

    def __init__(self) -> None:
        self.health = HEALTHY
        self.asked: list[str] = []

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "") -> Any:
        del body, content_type
        self.asked.append(f"{method} {path}")
        if self.health != HEALTHY:
            raise ApiError(self.health, "[-]etcd failed")
        return "ok"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("secrets")
    create_control_plane(directory, choose([]), "cluster.local")
    return directory


class Running:
    """A server in a thread."""

    def __init__(self, secrets: Path) -> None:
        self.api, self.secrets, self.told = ToldApi(), secrets, threading.Event()
        context = server_context(*(secrets / name for name in ("ca.crt", "apiserver.crt", "apiserver.key")))
        self.server = HealthServer(self.api, context, self.told.set, port=0)
        self.thread = threading.Thread(target=self.server.serve_until, args=(time.monotonic() + 60,))
        self.thread.start()

    def get(self, path: str, client: str = "controller-manager") -> tuple[int, str]:
        """Ask as a client of the cluster; without a name as somebody who has no certificate."""
        address, port = self.server.server_address[:2]
        with (
            socket.create_connection((str(address), port), timeout=30) as plain,
            self._context(client).wrap_socket(plain, server_hostname=SERVER_NAME) as connection,
        ):
            connection.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            response = http.client.HTTPResponse(connection)
            response.begin()
            return response.status, response.read().decode()

    def _context(self, client: str) -> ssl.SSLContext:
        if not client:
            return ssl.create_default_context(cafile=self.secrets / "ca.crt")
        return Access.from_document(json.loads((self.secrets / f"{client}.kubeconfig").read_text())).context()


@pytest.fixture
def running(secrets: Path) -> Iterator[Running]:
    server = Running(secrets)
    yield server
    server.server.done = True
    host, port = server.server.server_address[:2]
    socket.create_connection((str(host), port), timeout=30).close()  # it looks whether it is done after each client
    server.thread.join(30)
    server.server.server_close()


def test_the_api_server_is_asked_for_all_but_the_hooks_that_a_seed_makes_needless(running: Running) -> None:
    assert running.get("/healthz?timeout=32s") == (200, "ok")
    running.thread.join(30)
    assert not running.thread.is_alive()
    assert running.told.is_set()
    assert running.api.asked == [f"GET {EARLY_HEALTH}"]
    assert "exclude=poststarthook/rbac/bootstrap-roles" in EARLY_HEALTH


def test_what_the_api_server_lacks_is_passed_on_until_it_is_healthy(running: Running) -> None:
    running.api.health = UNHEALTHY
    assert running.get("/healthz") == (500, "500: [-]etcd failed")
    assert not running.told.is_set()
    running.api.health = HEALTHY
    assert running.get("/healthz") == (200, "ok")
    assert running.told.is_set()


def test_nobody_else_and_nothing_else_is_answered(running: Running) -> None:
    assert running.get("/healthz", client="scheduler")[0] == 403
    assert running.get("/api/v1/secrets")[0] == 503
    with pytest.raises((OSError, http.client.HTTPException)):
        running.get("/healthz", client="")
    assert not running.api.asked
    assert running.get("/healthz")[0] == 200


def test_nobody_waits_for_a_question_that_does_not_come(secrets: Path) -> None:
    context = server_context(*(secrets / name for name in ("ca.crt", "apiserver.crt", "apiserver.key")))
    with HealthServer(ToldApi(), context, lambda: None, port=0) as server:
        begin = time.monotonic()
        server.serve_until(begin + 0.2)
        assert time.monotonic() - begin < 30
        assert not server.done


def test_the_port_leads_to_the_api_server_afterwards_even_if_nobody_could_listen(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules: list[str] = []
    monkeypatch.setattr(early_health, "load_rules", rules.append)
    with HealthServer(ToldApi(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), lambda: None, port=0) as other:
        monkeypatch.setattr(HealthServer.__init__, "__defaults__", (other.server_address[1],))
        early_health.serve(ToldApi(), secrets, lambda: None)
    assert rules == [redirection()]
    assert "in use" in capsys.readouterr().err


def test_the_controller_manager_goes_by_the_port(secrets: Path) -> None:
    before = json.loads((secrets / "controller-manager.kubeconfig").read_text())
    after = kubeconfig(before)
    assert Access.from_document(after).server == "https://127.0.0.1:6444"
    assert after["users"] == before["users"]
    assert after["clusters"][0]["cluster"]["tls-server-name"] == SERVER_NAME
    assert "dport 6444 redirect to :6443" in redirection()
    assert CLIENT == "system:kube-controller-manager"
