"""`pinnace fetch --from release` against a server with upstream's layout."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from pinnace.components import release
from pinnace.components.download import mirrored
from pinnace.components.manifest import architecture, manifest, required
from pinnace.errors import ChecksumError, UsageError
from support.mirror import publish, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from unit.components.conftest import Pinnace

ARCH = architecture()


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    root = tmp_path / "upstream"
    for component in required():
        publish(root, component, ARCH, lambda binary: f"the binary {binary}".encode())
    return root


@pytest.fixture
def mirror(upstream: Path, pinnace: Pinnace) -> Iterator[Path]:
    with serve(upstream) as url:
        pinnace.environment["PINNACE_RELEASE_MIRROR"] = url
        yield upstream


def listing(pinnace: Pinnace) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in json.loads(pinnace("fetch", "--list", "-o", "json").stdout)}


def published(root: Path, binary: str) -> Path:
    return next(path for path in root.rglob("*") if path.name == binary)


@pytest.mark.usefixtures("mirror")
def test_everything_is_downloaded_verified_and_found_again(pinnace: Pinnace) -> None:
    first = pinnace("fetch", "--from", "release")
    assert "kubernetes 1.36.3: downloading kubelet" in first.stderr
    rows = listing(pinnace)
    assert {row["state"] for row in rows.values()} == {"installed"}
    assert {row["origin"] for row in rows.values()} == {"release"}
    store = pinnace.home / "components"
    assert (store / f"kubernetes/1.36.3/{ARCH}/kubelet").read_bytes() == b"the binary kubelet"
    assert (store / f"metrics-server/0.9.0/{ARCH}/metrics-server").read_bytes() == b"the binary metrics-server"
    again = pinnace("fetch", "--from", "release")
    assert "downloading" not in again.stderr


@pytest.mark.usefixtures("mirror")
def test_a_terminal_gets_a_moving_line_and_a_check_mark(pinnace: Pinnace) -> None:
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:  # noqa: PTH123 - a descriptor
        process = subprocess.Popen(
            pinnace.argv("fetch", "--from", "release", "etcd"), env=pinnace.env(), stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says so when the other side of a terminal is closed
            while data := screen.read(4096):
                shown += data
        assert process.wait(60) == 0
    assert b"\r\x1b[K" in shown
    assert "✓".encode() in shown
    assert b"installed in" in shown


def test_versions_are_shown_for_people_and_programs(pinnace: Pinnace) -> None:
    assert "kubernetes       1.36.3" in pinnace("version").stdout
    rows = {row["name"]: row["version"] for row in json.loads(pinnace("version", "-o", "json").stdout)}
    assert rows["kubernetes"] == "1.36.3"
    assert "pinnace" in rows


@pytest.mark.usefixtures("mirror")
def test_a_release_within_reach_is_chosen_by_itself(pinnace: Pinnace) -> None:
    pinnace("fetch", "etcd")
    assert listing(pinnace)["etcd"]["origin"] == "release"


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(pinnace: Pinnace, mirror: Path) -> None:
    published(mirror, "kubelet").write_bytes(b"something else")
    result = pinnace("fetch", "--from", "release", "kubernetes", code=1)
    assert "kubelet has the wrong checksum: expected sha256" in result.stderr
    assert listing(pinnace)["kubernetes"]["state"] == "missing"
    assert [path.name for path in (pinnace.home / "components/kubernetes").iterdir()] == [".lock"]


def test_a_wrong_image_layer_is_refused(pinnace: Pinnace, mirror: Path) -> None:
    layer = next(mirror.glob("**/metrics-server/blobs/*"))
    layer.write_bytes(layer.read_bytes() + b"more")
    result = pinnace("fetch", "--from", "release", "metrics-server", code=1)
    assert "wrong checksum" in result.stderr


def test_a_file_that_is_not_there_is_named(pinnace: Pinnace, mirror: Path) -> None:
    published(mirror, "kube-proxy").unlink()
    result = pinnace("fetch", "--from", "release", "kubernetes", code=1)
    assert "kube-proxy answers 404" in result.stderr
    assert "--from build" in result.stderr


def test_a_damaged_component_is_mended(pinnace: Pinnace, mirror: Path) -> None:
    assert mirror
    pinnace("fetch", "--from", "release", "etcd")
    binary = pinnace.home / "components" / "etcd" / manifest()["etcd"].version / ARCH / "etcd"
    binary.chmod(0o755)
    binary.write_bytes(b"broken")
    assert listing(pinnace)["etcd"]["state"] == "damaged"
    assert "damaged" in pinnace("fetch", "--from", "release", "etcd").stderr
    assert binary.read_bytes() == b"the binary etcd"


def test_an_unreachable_server_says_the_ways_out(pinnace: Pinnace) -> None:
    result = pinnace("fetch", "--from", "release", "etcd", code=1, PINNACE_RELEASE_MIRROR="http://127.0.0.1:1")
    assert "cannot reach" in result.stderr
    assert "--from build" in result.stderr
    assert "PINNACE_RELEASE_MIRROR" in result.stderr


def test_without_go_and_without_internet_both_ways_out_are_said(pinnace: Pinnace, tmp_path: Path) -> None:
    nothing = tmp_path / "empty"
    nothing.mkdir()
    result = pinnace("fetch", code=1, PINNACE_RELEASE_MIRROR="http://127.0.0.1:1", PATH=str(nothing))
    assert "no `go` on the PATH" in result.stderr
    assert "--from build" in result.stderr
    assert "--bundle" in result.stderr
    result = pinnace("fetch", "--from", "build", code=1, PATH=str(nothing))
    assert "needs Go, and there is no `go` on the PATH" in result.stderr
    assert "--from release" in result.stderr


@pytest.mark.usefixtures("mirror")
def test_an_optional_component_is_fetched_only_if_it_is_named(pinnace: Pinnace, tmp_path: Path) -> None:
    """Upstream's checksums of kwok are not known, so that there is no release to take: it would be built."""
    assert "kwok" not in pinnace("fetch", "--from", "release").stderr
    assert "kwok" not in listing(pinnace)
    refused = pinnace("fetch", "--from", "release", "kwok", "etcd", code=1).stderr
    assert "there is no release of kwok 0.8.0 to fetch" in refused
    assert "pinnace fetch --from build kwok" in refused
    assert "pinnace fetch --from FILE kwok" in refused
    nothing = tmp_path / "empty"
    nothing.mkdir()
    without_go = pinnace("fetch", "kwok", code=1, PATH=str(nothing)).stderr
    assert "building kwok 0.8.0 from source needs Go" in without_go
    assert "pinnace fetch --from FILE kwok" in without_go
    assert "--from release" not in without_go


def test_plain_http_is_refused_but_for_this_machine() -> None:
    url = "https://dl.k8s.io/release/file"
    assert mirrored(url, "") == url
    assert mirrored(url, "http://127.0.0.1:80/") == "http://127.0.0.1:80/dl.k8s.io/release/file"
    for mirror in ("http://mirror.example", "ftp://mirror.example", "file:///tmp"):
        with pytest.raises(UsageError, match="not HTTPS"):
            mirrored(url, mirror)


@pytest.mark.parametrize(
    "text",
    ["{sum}", "{sum}\n", "{sum}  file\n", "{sum} *file\n", f"{'0' * 64}  other\n{{sum}}  bin/file\n"],
)
def test_every_form_of_published_checksums_is_understood(text: str) -> None:
    digest = "ab" * 32
    assert release.parse_checksums(text.format(sum=digest), "file") == digest


def test_a_missing_checksum_is_an_error() -> None:
    with pytest.raises(ChecksumError):
        release.parse_checksums(f"{'0' * 64}  other\nnot a line\n", "file")


def read_from(directory: Path) -> Callable[[str], bytes]:
    return lambda binary: (directory / binary).read_bytes()


@pytest.mark.build
def test_the_real_binaries_come_through_the_release_layout(tmp_path: Path, pinnace: Pinnace, real_store: Path) -> None:
    """The binaries of the real store, served as upstream would: what comes out must be the same, and run."""
    root = tmp_path / "upstream"
    names = ("kubernetes", "containerd")
    for component in map(manifest().__getitem__, names):
        publish(root, component, ARCH, read_from(real_store / component.name / component.version / ARCH))
    with serve(root) as url:
        pinnace("fetch", "--from", "release", *names, PINNACE_RELEASE_MIRROR=url, timeout=200)
    kubectl = pinnace.home / f"components/kubernetes/1.36.3/{ARCH}/kubectl"
    assert kubectl.read_bytes() == (real_store / f"kubernetes/1.36.3/{ARCH}/kubectl").read_bytes()
    shutil.rmtree(pinnace.home)
