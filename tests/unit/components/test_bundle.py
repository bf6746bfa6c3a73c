from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from pinnace.components.bundle import INDEX, Bundle, member_name
from pinnace.components.manifest import architecture, manifest, required
from pinnace.components.store import ComponentStore, File, Origin, Record
from pinnace.errors import ChecksumError
from support.mirror import publish, serve
from unit.components.conftest import Pinnace

if TYPE_CHECKING:
    from pathlib import Path

ARCH = architecture()


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a pinnace whose store has everything."""
    made = Pinnace(home=tmp_path_factory.mktemp("fetched") / "home")
    upstream = tmp_path_factory.mktemp("upstream")
    for component in required():
        publish(upstream, component, ARCH, lambda binary: f"the binary {binary}".encode())
    with serve(upstream) as url:
        made("fetch", "--from", "release", PINNACE_RELEASE_MIRROR=url)
    return made.home


@pytest.fixture
def filled(pinnace: Pinnace, fetched: Path) -> Pinnace:
    """A pinnace whose store has everything."""
    shutil.copytree(fetched, pinnace.home, symlinks=True)
    return pinnace


def told(file: Path) -> tuple[str, str]:
    """What the user knows of a bundle, from who made it."""
    return "--sha256", hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["site.tar", "site.tar.gz", "site.tar.xz"])
def test_a_bundle_installs_everything_on_another_machine(filled: Pinnace, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    made = filled("fetch", "--bundle", str(file))
    assert told(file)[1] in made.stderr
    other = str(tmp_path / "other")
    result = filled("fetch", "--from", str(file), *told(file), PINNACE_HOME=other)
    assert f"unpacking from {name}" in result.stderr
    rows = json.loads(filled("fetch", "--list", "--verify", "-o", "json", PINNACE_HOME=other).stdout)
    assert {(row["state"], row["origin"]) for row in rows} == {("installed", "bundle")}
    kubelet = tmp_path / f"other/components/kubernetes/1.36.3/{ARCH}/kubelet"
    assert kubelet.read_bytes() == b"the binary kubelet"
    assert os.access(kubelet, os.X_OK)


def test_a_bundle_has_an_optional_component_if_it_was_named(filled: Pinnace, tmp_path: Path) -> None:
    store, kwok = ComponentStore(filled.home / "components", ARCH), manifest()["kwok"]

    def source(target: Path) -> tuple[Origin, str]:
        (target / "kwok").write_bytes(b"the binary kwok")
        return Origin.BUILD, "go1.2.3"

    with store.lock(kwok, lambda _holder: None):
        store.install(kwok, source)
    everything, alone = tmp_path / "site.tar", tmp_path / "kwok.tar"
    filled("fetch", "--bundle", str(everything))
    filled("fetch", "kwok", "--bundle", str(alone))
    assert "kwok" not in {record.component for record in Bundle(everything).records}
    other = str(tmp_path / "other")
    filled("fetch", "--from", str(alone), *told(alone), "kwok", PINNACE_HOME=other)
    [row] = json.loads(filled("fetch", "--list", "-o", "json", "kwok", PINNACE_HOME=other).stdout)
    assert (row["state"], row["origin"]) == ("installed", "bundle")


def test_a_changed_bundle_is_refused(filled: Pinnace, tmp_path: Path) -> None:
    file = tmp_path / "site.tar"
    filled("fetch", "--bundle", str(file))
    data = file.read_bytes()
    assert data.count(b"the binary etcd") == 1
    file.write_bytes(data.replace(b"the binary etcd", b"the binary eatc"))
    result = filled("fetch", "--from", str(file), *told(file), PINNACE_HOME=str(tmp_path / "other"), code=1)
    assert "is damaged: etcd is not what it says" in result.stderr


def test_a_bundle_does_not_vouch_for_itself(filled: Pinnace, tmp_path: Path) -> None:
    file = tmp_path / "site.tar"
    filled("fetch", "--bundle", str(file))
    other = tmp_path / "other"
    result = filled("fetch", "--from", str(file), PINNACE_HOME=str(other), code=1)
    assert "nobody but the bundle itself vouches for kube-apiserver" in result.stderr
    assert "--sha256" in result.stderr
    result = filled("fetch", "--from", str(file), "--sha256", "0" * 64, PINNACE_HOME=str(other), code=1)
    assert "is not the bundle that you mean" in result.stderr
    assert not list(other.glob("components/*/*/*/record.json"))
    assert "--sha256 is that of a bundle" in filled("fetch", "--sha256", "0" * 64, code=2).stderr


@pytest.mark.skipif(ARCH != "amd64", reason="only builds for amd64 are pinned")
def test_a_bundle_that_contradicts_a_pin_is_refused_whoever_vouches_for_it(filled: Pinnace, tmp_path: Path) -> None:
    """It says that its etcd was built by a Go whose etcd is pinned."""
    record = next(filled.home.glob("components/etcd/*/*/record.json"))
    pinned = (manifest()["etcd"].lock / "SHA256SUMS").read_text().split()[1].split("/")[1]
    document = json.loads(record.read_text())
    record.write_text(json.dumps(document | {"origin": "build", "detail": pinned}))
    file = tmp_path / "site.tar"
    filled("fetch", "--bundle", str(file))
    result = filled("fetch", "--from", str(file), *told(file), PINNACE_HOME=str(tmp_path / "other"), code=1)
    assert "etcd in site.tar has sha256" in result.stderr
    assert "It is not upstream's" in result.stderr


def test_what_is_pinned_needs_nobody_else_to_vouch_for_it(tmp_path: Path) -> None:
    content = b"the binary"
    lock = tmp_path / "lock"
    lock.mkdir()
    sha256 = hashlib.sha256(content).hexdigest()
    (lock / "SHA256SUMS").write_text(f"{sha256}  build/go1.26.8/{ARCH}/etcd\n")
    for name in ("go.mod", "go.sum"):
        (lock / name).touch()
    component = replace(manifest()["etcd"], lock=lock)
    record = Record(component="etcd", version=component.version, arch=ARCH, fingerprint=component.fingerprint,
                    origin=Origin.BUILD, detail="go1.26.8",
                    files={"etcd": File(sha256=sha256, size=len(content), mtime_ns=0)})  # fmt: skip
    index = json.dumps([asdict(record)]).encode()
    with tarfile.open(tmp_path / "site.tar", "w") as tar:
        for name, data in ((INDEX, index), (member_name(record, "etcd"), content)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    Bundle(tmp_path / "site.tar").unpack(component, ARCH, tmp_path)
    assert (tmp_path / "etcd").read_bytes() == content


def test_only_files_are_taken_out_of_a_bundle(filled: Pinnace, tmp_path: Path) -> None:
    file, changed = tmp_path / "site.tar", tmp_path / "changed.tar"
    filled("fetch", "--bundle", str(file))
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
        with tarfile.open(file) as old, tarfile.open(changed, "w") as new:
            for member in old:
                if member.name.endswith("/etcd"):
                    member.type, member.linkname, member.size = kind, "/etc/passwd", 0
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
        etcd = manifest()["etcd"]
        with pytest.raises(ChecksumError, match="is damaged: etcd is not what it says"):
            Bundle(changed, told(changed)[1]).unpack(etcd, ARCH, tmp_path)
        assert not (tmp_path / "etcd").exists()


def test_a_cut_off_bundle_is_refused(filled: Pinnace, tmp_path: Path) -> None:
    file = tmp_path / "site.tar.gz"
    filled("fetch", "--bundle", str(file))
    os.truncate(file, file.stat().st_size // 2)
    result = filled("fetch", "--from", str(file), *told(file), PINNACE_HOME=str(tmp_path / "other"), code=1)
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
