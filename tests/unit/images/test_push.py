"""``pinnace image push`` against upstream's own registry."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.images.oci import INDEX, digest_of
from pinnace.images.store import ImageStore
from testbed.waiting import wait_until
from unit.images.archives import NAME, docker_tar, oci_tar, unpacked
from unit.images.registries import (
    BASIC,
    HERE,
    PASSWORD,
    USER,
    Registry,
    authority_in,
    cutting,
    serving,
    token_server,
    with_passwords,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.build

LARGE = os.urandom(8 << 20)
REPOSITORY = "team/tiny"


@pytest.fixture(scope="module")
def binary(real_store: Path) -> Path:
    return next(real_store.glob("distribution/*/*/registry"))


@pytest.fixture(scope="module")
def remote(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    directory = tmp_path_factory.mktemp("registry")
    authority_in(directory)
    with serving(binary, directory, auth=with_passwords(directory)) as found:
        yield found


@dataclass(kw_only=True)
class Home:
    """A user's directories."""

    path: Path
    authority: Path

    @property
    def store(self) -> ImageStore:
        return ImageStore(self.path / "share" / "images")

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-m", "pinnace", "image"]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        places = {"PINNACE_HOME": self.path / "share", "HOME": self.path, "SSL_CERT_FILE": self.authority}
        return kept | {name: str(value) for name, value in places.items()} | {"NO_COLOR": "1"}

    def log_in(self, host: str, password: str = PASSWORD, *, file: str = ".docker/config.json") -> Path:
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        login = {"auth": base64.b64encode(f"{USER}:{password}".encode()).decode()}
        path.write_text(json.dumps({"auths": {host: login}}))
        return path

    def push(
        self, *words: str, code: int = 0, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        argv = [*self.argv, "push", *words]
        environment = self.environment | (variables or {})
        result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr
        assert PASSWORD not in result.stdout + result.stderr
        return result


@pytest.fixture
def home(tmp_path: Path, remote: Registry) -> Home:
    found = Home(path=tmp_path / "home", authority=remote.authority)
    found.store.load(oci_tar(tmp_path / "tiny.tar"))
    return found


def digest_in(store: ImageStore, name: str = NAME) -> str:
    [digest] = [stored.digest for stored in store.list() if str(stored.name) == name]
    return digest


def assert_there(remote: Registry, repository: str, tag: str, digest: str) -> dict[str, Any]:
    """That the registry has the manifest and everything that it names."""
    content = remote.get(f"{repository}/manifests/{tag}")
    assert digest_of(content) == digest
    manifest: dict[str, Any] = json.loads(content)
    for part in (manifest["config"], *manifest["layers"]):
        assert digest_of(remote.get(f"{repository}/blobs/{part['digest']}")) == part["digest"]
    return manifest


@pytest.mark.parametrize("file", [".docker/config.json", ".config/containers/auth.json", "elsewhere.json"])
def test_an_image_is_sent_with_the_users_login(home: Home, remote: Registry, file: str) -> None:
    login = home.log_in(remote.host, file=file)
    variables = {"REGISTRY_AUTH_FILE": str(login)} if file == "elsewhere.json" else {}
    repository = f"{REPOSITORY}-{file.strip('.').split('.')[0]}".replace("/", "-").lower()
    result = home.push(NAME, f"{remote.host}/{repository}:2", variables=variables)
    digest = digest_in(home.store)
    assert result.stdout.strip() == f"{remote.host}/{repository}@{digest}"
    assert "sending 1 of 2" in result.stderr
    assert_there(remote, repository, "2", digest)
    again = home.push(NAME, f"{remote.host}/{repository}:3", variables=variables)
    assert "sending" not in again.stderr, "what is there is not sent again"
    assert_there(remote, repository, "3", digest)


def test_without_a_target_the_name_says_where_to(home: Home, remote: Registry, tmp_path: Path) -> None:
    home.log_in(remote.host)
    name = f"{remote.host}/own/name:7"
    home.store.load(docker_tar(tmp_path / "saved.tar", tags=None), name)
    home.push(name)
    assert_there(remote, "own/name", "7", digest_in(home.store, name))


def test_an_index_is_sent_with_the_platforms_that_were_loaded(home: Home, remote: Registry, tmp_path: Path) -> None:
    home.log_in(remote.host)
    layout = unpacked(oci_tar(tmp_path / "tiny.tar"), tmp_path / "layout")
    [entry] = json.loads((layout / "index.json").read_text())["manifests"]
    here = {key: value for key, value in entry.items() if key != "annotations"}
    absent = here | {"digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "arm64"}}
    for children in ([here], [here, absent]):
        content = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": children}).encode()
        (layout / "blobs" / digest_of(content).replace(":", "/")).write_bytes(content)
        outer = {"mediaType": INDEX, "digest": digest_of(content), "size": len(content)}
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [outer]}))
        home.store.load(layout, "multi:1")
        result = home.push("multi:1", f"{remote.host}/multi:1")
        there = json.loads(remote.get("multi/manifests/1"))
        assert there["mediaType"] == INDEX
        assert there["manifests"] == [here]
        assert ("left out" in result.stderr) is (absent in children)
        assert_there(remote, "multi", here["digest"], here["digest"])


def test_a_registry_that_wants_a_token_gets_one(home: Home, binary: Path, tmp_path: Path) -> None:
    directory = tmp_path / "with-tokens"
    authority_in(directory)
    home.authority = directory / "ca.crt"
    with token_server(directory) as (auth, scopes), serving(binary, directory, auth=auth) as remote:
        home.log_in(remote.host)
        home.push(NAME, f"{remote.host}/{REPOSITORY}:1")
        assert f"repository:{REPOSITORY}:pull,push" in scopes
        assert list((directory / "data").rglob(f"{REPOSITORY}/_manifests/tags/1/current/link"))
        home.log_in(remote.host, "wrong")
        refused = home.push(NAME, f"{remote.host}/{REPOSITORY}:2", code=1)
        assert "does not let 'user' from" in refused.stderr
        assert "401 Unauthorized" in refused.stderr


def test_a_login_that_a_program_keeps_is_asked_for(home: Home, remote: Registry, tmp_path: Path) -> None:
    login = json.dumps({"Username": USER, "Secret": PASSWORD})
    program = tmp_path / "bin" / "docker-credential-test"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nread -r host\n[ \"$host\" = {remote.host} ] && echo '{login}'\n")
    program.chmod(0o755)
    (home.path / ".docker").mkdir()
    (home.path / ".docker/config.json").write_text(json.dumps({"credsStore": "test"}))
    path = f"{program.parent}:{os.environ['PATH']}"
    home.push(NAME, f"{remote.host}/kept:1", variables={"PATH": path})
    assert_there(remote, "kept", "1", digest_in(home.store))


def test_without_tls_only_to_this_machine(home: Home, binary: Path, tmp_path: Path) -> None:
    refused = home.push(NAME, "registry.example/tiny:1", "--plain-http", code=2)
    assert "refusing to send to registry.example without TLS" in refused.stderr
    directory = tmp_path / "plain"
    directory.mkdir()
    with serving(binary, directory, auth={}, tls=False) as remote:
        home.push(NAME, f"{remote.host}/{REPOSITORY}:1", "--plain-http")
        assert_there(remote, REPOSITORY, "1", digest_in(home.store))


def test_wrong_and_missing_logins_are_said(home: Home, remote: Registry) -> None:
    missing = home.push(NAME, f"{remote.host}/tiny:1", code=1)
    assert f"{remote.host} wants to know who you are" in missing.stderr
    assert f"docker login {remote.host}" in missing.stderr
    login = home.log_in(remote.host, "wrong")
    wrong = home.push(NAME, f"{remote.host}/tiny:1", code=1)
    assert f"does not let 'user' from {login} write" in wrong.stderr
    assert "401 Unauthorized" in wrong.stderr
    for damaged in ("{", "7"):
        login.write_text(damaged)
        assert f"{login} cannot be read" in home.push(NAME, f"{remote.host}/tiny:1", code=1).stderr
    login.write_text(json.dumps({"auths": {remote.host: {"auth": "?"}}}))
    assert f"a login in {login} is damaged" in home.push(NAME, f"{remote.host}/tiny:1", code=1).stderr


def test_an_image_that_was_not_loaded_is_said(home: Home, remote: Registry) -> None:
    assert "there is no image docker.io/library/nothing:1" in home.push("nothing:1", remote.host, code=1).stderr
    assert "is no name of an image" in home.push(NAME, "NOT A NAME", code=1).stderr


def test_a_registry_that_cannot_be_reached_is_said(home: Home, remote: Registry, tmp_path: Path) -> None:
    with socket.create_server((HERE, 0)) as probe:
        port = probe.getsockname()[1]
    gone = home.push(NAME, f"{HERE}:{port}/tiny:1", code=1)
    assert f"cannot reach {HERE}:{port}: [Errno 111] Connection refused" in gone.stderr
    nowhere = home.push(NAME, "registry.invalid/tiny:1", code=1)
    assert "cannot reach registry.invalid" in nowhere.stderr
    authority_in(tmp_path / "other")
    other = {"SSL_CERT_FILE": str(tmp_path / "other" / "ca.crt")}
    home.log_in(remote.host)
    distrusted = home.push(NAME, f"{remote.host}/tiny:1", code=1, variables=other)
    assert f"the certificate of {remote.host} cannot be trusted" in distrusted.stderr
    assert "SSL_CERT_FILE" in distrusted.stderr


def test_what_breaks_off_is_sent_again_and_given_up_in_the_end(home: Home, remote: Registry, tmp_path: Path) -> None:
    home.store.load(oci_tar(tmp_path / "large.tar", "large:1", LARGE))
    with cutting(remote.port, after=2 << 20, times=2) as port:
        home.log_in(f"{HERE}:{port}")
        home.push("large:1", f"{HERE}:{port}/mended:1")
    assert_there(remote, "mended", "1", digest_in(home.store, "docker.io/library/large:1"))
    with cutting(remote.port, after=2 << 20, times=99) as port:
        home.log_in(f"{HERE}:{port}")
        result = home.push("large:1", f"{HERE}:{port}/broken:1", code=1)
    assert "broke off 3 times" in result.stderr
    assert "Run it again" in result.stderr
    assert list((remote.log.parent / "data").rglob("broken/_manifests/tags")) == [], "no name without its content"


def test_an_interrupted_push_ends_at_once_and_names_nothing(home: Home, remote: Registry) -> None:
    with socket.create_server((HERE, 0)) as silent:
        target = f"{HERE}:{silent.getsockname()[1]}/tiny:1"
        argv = [*home.argv, "push", NAME, target]
        with subprocess.Popen(argv, env=home.environment, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, messages = process.communicate(timeout=60)
            connection.close()
    assert process.returncode == 130
    assert messages.strip().endswith("interrupted")
    assert remote.log.exists()


def test_the_password_is_in_no_log(remote: Registry) -> None:
    assert PASSWORD not in remote.log.read_text()
    assert BASIC not in remote.log.read_text()


@pytest.mark.parametrize("kind", ["oci", "docker"])
def test_an_image_can_come_from_a_pipe(home: Home, tmp_path: Path, kind: str) -> None:
    tar = oci_tar(tmp_path / "a.tar", "piped:1") if kind == "oci" else docker_tar(tmp_path / "a.tar", tags=["piped:1"])

    def load(content: bytes, *words: str, code: int = 0) -> str:
        argv = [*home.argv, "load", "-", *words]
        result = subprocess.run(
            argv, env=home.environment, input=content, capture_output=True, check=False, timeout=120
        )
        assert result.returncode == code, result.stderr
        return result.stderr.decode()

    assert "loaded docker.io/library/piped:1" in load(tar.read_bytes())
    assert "loaded docker.io/library/other:2" in load(tar.read_bytes(), "--as", "other:2")
    names = {str(stored.name) for stored in home.store.list()}
    assert {"docker.io/library/piped:1", "docker.io/library/other:2"} <= names
    before = home.store.list()
    assert "standard input is no image" in load(b"", code=1)
    assert "standard input" in load(tar.read_bytes()[:1000], code=1)
    assert home.store.list() == before
    wait_until("nothing to be left", lambda: not list(home.store.root.glob(".staging-*")), limit=5)
