"""Kubeconfigs of all kinds."""

from __future__ import annotations

import base64
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pinnace.controlplane.pki import create_control_plane
from pinnace.errors import ClusterError, UsageError
from pinnace.kube.access import Access
from pinnace.kube.client import API_UNREACHABLE
from pinnace.network.addresses import choose

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, user: dict[str, Any], **cluster: Any) -> Path:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/base", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "main", "context": {"cluster": "c", "user": "u"}},
            {"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "lab"}},
        ],
        "current-context": "main",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_tokens_in_place_and_in_files(tmp_path: Path) -> None:
    access = Access.from_file(write(tmp_path / "config", {"token": "abc"}))
    assert (access.server, access.namespace) == ("https://api:6443/base", "default")
    assert access.headers() == {"Authorization": "Bearer abc"}
    (tmp_path / "token").write_text("first\n")
    access = Access.from_file(write(tmp_path / "config", {"tokenFile": "token"}), context="lab")
    assert access.namespace == "lab"
    assert access.headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("renewed\n")
    assert access.headers() == {"Authorization": "Bearer renewed"}


def test_certificates_in_place_and_in_files(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("authority")
    data = {"client-certificate-data": base64.b64encode(b"cert").decode(), "client-key": "key.pem"}
    (tmp_path / "key.pem").write_text("key")
    path = write(tmp_path / "config", data, **{"certificate-authority": "ca.pem", "tls-server-name": "other"})
    access = Access.from_file(path)
    assert (access.authority, access.certificate, access.name) == ("authority", b"cert\nkey", "other")


def test_a_credential_plugin_is_asked_once(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        '#!/bin/sh\necho x >> "$(dirname "$0")/asked"\necho "{\\"status\\": {\\"token\\": \\"$WORD$1\\"}}"\n'
    )
    plugin.chmod(0o755)
    about = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "args": ["1"],
             "env": [{"name": "WORD", "value": "secret"}]}  # fmt: skip
    access = Access.from_file(write(tmp_path / "config", {"exec": about}))
    assert access.headers() == access.headers() == {"Authorization": "Bearer secret1"}
    assert (tmp_path / "asked").read_text() == "x\n"


@pytest.mark.parametrize(("command", "message"), [("false", "plugin failed"), ("/absent", "plugin cannot be used")])
def test_a_plugin_that_fails_is_an_api_that_does_not_answer(tmp_path: Path, command: str, message: str) -> None:
    about = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    access = Access.from_file(write(tmp_path / "config", {"exec": about}))
    with pytest.raises(ClusterError, match=message) as raised:
        access.headers()
    assert isinstance(raised.value, API_UNREACHABLE)


def test_what_is_no_kubeconfig_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no usable kubeconfig"):
        Access.from_file(tmp_path / "absent")
    (tmp_path / "bad").write_text("- a list")
    with pytest.raises(UsageError, match="no usable kubeconfig"):
        Access.from_file(tmp_path / "bad")
    with pytest.raises(UsageError, match="no usable kubeconfig"):
        Access.from_file(write(tmp_path / "config", {}), context="absent")


def test_a_key_is_never_written_to_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed would leave it there."""
    create_control_plane(tmp_path, choose([]), "cluster.local")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    context = Access.from_file(tmp_path / "admin.kubeconfig").context()
    assert context.cert_store_stats()["x509_ca"] == 1
