from __future__ import annotations

import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from mirror import publish, serve
from pinnace.components.manifest import architecture, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from components.conftest import Pinnace

ARCH = architecture()


@pytest.fixture
def filled(pinnace: Pinnace, tmp_path: Path) -> Pinnace:
    """A pinnace whose store has everything."""
    for component in manifest().values():
        publish(tmp_path / "upstream", component, ARCH, lambda binary: f"the binary {binary}".encode())
    with serve(tmp_path / "upstream") as url:
        pinnace("fetch", "--from", "release", PINNACE_RELEASE_MIRROR=url)
    return pinnace


@pytest.mark.parametrize("name", ["site.tar", "site.tar.gz", "site.tar.xz"])
def test_a_bundle_installs_everything_on_another_machine(filled: Pinnace, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    filled("fetch", "--bundle", str(file))
    other = str(tmp_path / "other")
    result = filled("fetch", "--from", str(file), PINNACE_HOME=other)
    assert f"unpacking from {name}" in result.stderr
    rows = json.loads(filled("fetch", "--list", "--verify", "-o", "json", PINNACE_HOME=other).stdout)
    assert {(row["state"], row["origin"]) for row in rows} == {("installed", "bundle")}
    kubelet = tmp_path / f"other/components/kubernetes/1.36.3/{ARCH}/kubelet"
    assert kubelet.read_bytes() == b"the binary kubelet"
    assert os.access(kubelet, os.X_OK)


def test_a_changed_bundle_is_refused(filled: Pinnace, tmp_path: Path) -> None:
    file = tmp_path / "site.tar"
    filled("fetch", "--bundle", str(file))
    data = file.read_bytes()
    assert data.count(b"the binary etcd") == 1
    file.write_bytes(data.replace(b"the binary etcd", b"the binary eatc"))
    result = filled("fetch", "--from", str(file), PINNACE_HOME=str(tmp_path / "other"), code=1)
    assert "is damaged: etcd is not what it says" in result.stderr


def test_a_cut_off_bundle_is_refused(filled: Pinnace, tmp_path: Path) -> None:
    file = tmp_path / "site.tar.gz"
    filled("fetch", "--bundle", str(file))
    os.truncate(file, file.stat().st_size // 2)
    result = filled("fetch", "--from", str(file), PINNACE_HOME=str(tmp_path / "other"), code=1)
    assert "damaged" in result.stderr or "not a bundle" in result.stderr


def test_a_bundle_of_another_version_is_refused(filled: Pinnace, tmp_path: Path) -> None:
    file = tmp_path / "site.tar"
    filled("fetch", "--bundle", str(file))
    fingerprint = manifest()["etcd"].fingerprint.encode()
    file.write_bytes(file.read_bytes().replace(fingerprint, b"0" * len(fingerprint)))
    result = filled("fetch", "--from", str(file), PINNACE_HOME=str(tmp_path / "other"), code=1)
    assert "does not hold etcd" in result.stderr
    assert "same version of pinnace" in result.stderr


def test_what_is_no_bundle_is_refused(pinnace: Pinnace, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    assert "not a bundle" in pinnace("fetch", "--from", str(tmp_path / "text"), code=1).stderr
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(tmp_path / "text", "text")
    assert "not a bundle" in pinnace("fetch", "--from", str(tmp_path / "other.tar"), code=1).stderr
    assert "there is no file" in pinnace("fetch", "--from", "releases", code=2).stderr


def test_a_bundle_needs_a_name_that_tells_its_format(filled: Pinnace, tmp_path: Path) -> None:
    assert "cannot tell the format" in filled("fetch", "--bundle", str(tmp_path / "site.zip"), code=2).stderr
    assert "no directory" in filled("fetch", "--bundle", str(tmp_path / "no/site.tar"), code=2).stderr
