"""The store: everything that is loaded can be found again, and nothing else gets in."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.errors import ImageError
from pinnace.images.oci import INDEX, MANIFEST, digest_of
from pinnace.images.push import push
from pinnace.images.reference import parse
from pinnace.images.remote import Remote
from pinnace.images.store import ImageStore
from unit.images.archives import NAME, change, docker_tar, layer_of, names_in, oci_tar, unpacked, write_tar

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


def files(store: ImageStore) -> set[str]:
    """Everything but what is always there."""
    found = {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}
    return found - {".lock"}


def blobs(store: ImageStore) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in store.registry.rglob("data")}


def names(store: ImageStore) -> list[str]:
    return [str(stored.name) for stored in store.list()]


def assert_whole(store: ImageStore) -> None:
    """Every blob is what its name says, every link leads to one, and nothing is left of loads."""
    content = blobs(store)
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in content.items())
    assert {path.read_text().removeprefix("sha256:") for path in store.registry.rglob("link")} <= set(content)
    assert not list(store.root.glob(".staging-*"))


def test_an_oci_archive_is_stored_as_the_registry_has_it(store: ImageStore, tmp_path: Path) -> None:
    [loaded] = store.load(oci_tar(tmp_path / "tiny.tar"))
    assert store.list() == [loaded]
    assert str(loaded.name) == NAME
    manifest = json.loads(blobs(store)[loaded.digest.removeprefix("sha256:")])
    repository = store.registry / "docker/registry/v2/repositories/localhost/test/tiny"
    assert (repository / "_manifests/tags/1/current/link").read_text() == loaded.digest
    assert (repository / "_manifests/revisions" / loaded.digest.replace(":", "/") / "link").exists()
    for part in (manifest["config"], *manifest["layers"]):
        assert (repository / "_layers" / part["digest"].replace(":", "/") / "link").read_text() == part["digest"]
    assert loaded.size == sum(map(len, blobs(store).values()))
    assert '"http://127.0.0.1:10230/v2/localhost"' in (store.hosts / "localhost/hosts.toml").read_text()
    assert store.root.stat().st_mode & 0o077 == 0
    assert_whole(store)


def test_a_directory_and_a_compressed_archive_are_the_same_image(store: ImageStore, tmp_path: Path) -> None:
    tar = oci_tar(tmp_path / "tiny.tar")
    packed = tmp_path / "tiny.tar.gz"
    packed.write_bytes(gzip.compress(tar.read_bytes()))
    loaded = [store.load(path) for path in (tar, packed, unpacked(tar, tmp_path / "layout"))]
    assert loaded[0] == loaded[1] == loaded[2]
    assert_whole(store)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_docker_archive(store: ImageStore, tmp_path: Path, *, compressed: bool) -> None:
    loaded = store.load(docker_tar(tmp_path / "saved.tar", tags=["busybox:1", "a/b:2"], compressed=compressed))
    assert names(store) == ["docker.io/a/b:2", "docker.io/library/busybox:1"]
    manifest = json.loads(blobs(store)[loaded[0].digest.removeprefix("sha256:")])
    assert manifest["mediaType"] == MANIFEST
    assert manifest["layers"][0]["mediaType"].endswith("tar+gzip" if compressed else "tar")
    assert len(manifest["layers"]) == 2
    assert_whole(store)


def test_of_an_index_other_platforms_may_be_left_out(store: ImageStore, tmp_path: Path) -> None:
    """As ``docker save`` does with images for several platforms."""
    tar = oci_tar(tmp_path / "tiny.tar")
    layout = unpacked(tar, tmp_path / "layout")
    [entry] = json.loads((layout / "index.json").read_text())["manifests"]
    here = {key: value for key, value in entry.items() if key != "annotations"}
    kind = "application/vnd.oci.image.index.v1+json"
    inner = {"schemaVersion": 2, "mediaType": kind, "manifests": [here, here | {"digest": f"sha256:{'0' * 64}"}]}
    content = json.dumps(inner).encode()
    outer = {"mediaType": kind, "digest": digest_of(content), "size": len(content), "annotations": entry["annotations"]}
    (layout / "blobs" / digest_of(content).replace(":", "/")).write_bytes(content)
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [outer]}))
    [loaded] = store.load(layout)
    assert loaded.digest == digest_of(content)
    assert_whole(store)
    (layout / "blobs" / here["digest"].replace(":", "/")).unlink()
    with pytest.raises(ImageError, match="has no platform of localhost/test/tiny:1"):
        store.load(layout)


def test_a_name_can_be_given(store: ImageStore, tmp_path: Path) -> None:
    tar = docker_tar(tmp_path / "saved.tar", tags=None)
    with pytest.raises(ImageError, match="has no name") as error:
        store.load(tar)
    assert "--as" in error.value.hint
    store.load(tar, "registry.example:5000/mine:3")
    assert names(store) == ["registry.example:5000/mine:3"]
    assert (store.hosts / "registry.example:5000/hosts.toml").exists()


def test_one_name_for_several_images_is_refused(store: ImageStore, tmp_path: Path) -> None:
    tar = oci_tar(tmp_path / "tiny.tar")
    layout, other = unpacked(tar, tmp_path / "layout"), unpacked(oci_tar(tar, content=b"other"), tmp_path / "other")
    shutil.copytree(other / "blobs", layout / "blobs", dirs_exist_ok=True)
    entries = [json.loads((path / "index.json").read_text())["manifests"][0] for path in (layout, other)]
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    with pytest.raises(ImageError, match="several images"):
        store.load(layout, "new:1")
    assert not files(store)


def test_a_name_moves_to_the_newer_image(store: ImageStore, tmp_path: Path) -> None:
    [old] = store.load(oci_tar(tmp_path / "tiny.tar"))
    [new] = store.load(oci_tar(tmp_path / "tiny.tar", content=b"other"))
    assert old.digest != new.digest
    assert store.list() == [new]


def test_remove_leaves_what_others_need(store: ImageStore, tmp_path: Path) -> None:
    tar = oci_tar(tmp_path / "tiny.tar")
    store.load(tar)
    store.load(tar, "other:1")
    (store.root / ".staging-of-a-killed-load").mkdir()
    before = blobs(store)
    store.remove(parse(NAME))
    assert names(store) == ["docker.io/library/other:1"]
    assert blobs(store) == before
    assert_whole(store)
    store.remove(parse("other:1"))
    assert not blobs(store)
    with pytest.raises(ImageError, match="there is no image"):
        store.remove(parse("other:1"))


def test_a_truncated_archive_is_refused_at_every_length(store: ImageStore, tmp_path: Path) -> None:
    whole = oci_tar(tmp_path / "tiny.tar").read_bytes()
    cut = tmp_path / "cut.tar"
    end = len(whole.rstrip(b"\0"))
    for length in range(0, end - 512, 512):
        cut.write_bytes(whole[:length])
        with pytest.raises(ImageError, match=r"cut\.tar|damaged"):
            store.load(cut)
        assert not files(store)


def test_changed_bytes_are_refused(store: ImageStore, tmp_path: Path) -> None:
    for place in [name for name in names_in(oci_tar(tmp_path / "tiny.tar")) if name.startswith("blobs/")]:
        tar = oci_tar(tmp_path / "tiny.tar")
        data = unpacked(tar, tmp_path / "layout").joinpath(place).read_bytes()
        change(tar, {place: data[:-1] + bytes([data[-1] ^ 1])})
        with pytest.raises(ImageError, match="damaged"):
            store.load(tar)
        assert not files(store)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no image, or is damaged"),
        (b"hello\n" * 999, "no image, or is damaged"),
        (os.urandom(9999), "no image, or is damaged"),
    ],
)
def test_what_is_no_archive_is_refused(store: ImageStore, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ImageError, match=message):
        store.load(tmp_path / "file")
    assert not files(store)


def test_an_archive_of_something_else_is_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"other\.tar has no index\.json"):
        store.load(write_tar(tmp_path / "other.tar", {"README": b"hello"}))
    tar = oci_tar(tmp_path / "tiny.tar")
    with pytest.raises(ImageError, match=r"tiny\.tar has no blobs/"):
        store.load(change(tar, {layer_of(tar): None}))


def test_an_archive_cannot_name_files_outside(store: ImageStore, tmp_path: Path) -> None:
    tar = oci_tar(tmp_path / "tiny.tar")
    entry = {"mediaType": MANIFEST, "digest": "sha256:../../../etc/passwd", "annotations": {"io.containerd.image.name": NAME}}  # fmt: skip # noqa: E501
    with pytest.raises(ImageError, match="no SHA-256 digest"):
        store.load(change(tar, {"index.json": json.dumps({"manifests": [entry]}).encode()}))


def test_loads_at_the_same_time_are_safe(store: ImageStore, tmp_path: Path) -> None:
    tars = [oci_tar(tmp_path / f"{number}.tar", f"test/tiny:{number}") for number in range(3)]
    code = "import sys; from pathlib import Path; from pinnace.images.store import ImageStore\n"
    code += "for _ in range(10): ImageStore(Path(sys.argv[1])).load(Path(sys.argv[2]))"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(store.root), str(tar)]) for tar in (*tars, *tars)]
    assert [process.wait(60) for process in processes] == [0] * 6
    assert names(store) == [f"docker.io/test/tiny:{number}" for number in range(3)]
    assert_whole(store)


def nested_indices(path: Path, depth: int, width: int, *, leaf: bool) -> Path:
    """An image whose index names an index so many times, and so on; at the bottom an image, or one that is missing."""
    layout = unpacked(oci_tar(path.with_suffix(".tar")), path)
    index = json.loads((layout / "index.json").read_text())
    entry = index["manifests"][0]
    names = entry.pop("annotations")
    below = entry if leaf else entry | {"digest": f"sha256:{'0' * 64}"}
    for _ in range(depth):
        content = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [below] * width}).encode()
        below = {"mediaType": INDEX, "digest": digest_of(content), "size": len(content)}
        (layout / "blobs" / digest_of(content).replace(":", "/")).write_bytes(content)
    (layout / "index.json").write_text(json.dumps(index | {"manifests": [below | {"annotations": names}]}))
    return layout


def test_indices_in_one_another_are_each_read_once(tmp_path: Path, store: ImageStore) -> None:
    """Each names the next a hundred times: a hundred to the sixth power, if all ways were walked."""
    begin = time.monotonic()
    [loaded] = store.load(nested_indices(tmp_path / "a", 6, 100, leaf=True))
    assert [stored.digest for stored in store.list()] == [loaded.digest]
    store.remove(loaded.name)
    with pytest.raises(ImageError, match="it is incomplete"):
        store.load(nested_indices(tmp_path / "b", 6, 100, leaf=False))
    assert time.monotonic() - begin < 20


def test_indices_that_go_too_deep_are_refused(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(ImageError, match="too many manifests"):
        store.load(nested_indices(tmp_path / "a", 40, 1, leaf=True))


def evil_tar(path: Path, diff_id: str, layer: str = "layer.tar", config: str = "config.json") -> Path:
    document = {"rootfs": {"type": "layers", "diff_ids": [diff_id]}}
    manifest = [{"Config": config, "RepoTags": [NAME], "Layers": [layer]}]
    files = {"manifest.json": manifest, "config.json": document}
    data = {name: json.dumps(content).encode() for name, content in files.items()}
    return write_tar(path, data | {"layer.tar": b"evil"})


@pytest.mark.parametrize("absolute", [True, False])
def test_a_layer_cannot_choose_the_file_that_it_is_written_to(
    tmp_path: Path, store: ImageStore, *, absolute: bool
) -> None:
    """The digests of a docker-archive's layers are what its configuration says they are."""
    target = tmp_path / "planted"
    name = str(target) if absolute else "../" * 20 + str(target).lstrip("/")
    with pytest.raises(ImageError, match="no SHA-256 digest"):
        store.load(evil_tar(tmp_path / "evil.tar", f"sha256:{name}"))
    assert not target.exists()


@pytest.mark.parametrize("place", ["/etc/hostname", "../outside", "pipe", "link"])
def test_a_directory_gives_no_files_from_elsewhere(tmp_path: Path, store: ImageStore, place: str) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    layout = unpacked(evil_tar(tmp_path / "a.tar", digest_of(b"secret"), layer=place), tmp_path / "layout")
    os.mkfifo(layout / "pipe")  # whoever opens it waits for ever
    (layout / "link").symlink_to("../outside")
    with pytest.raises(ImageError, match=r"leads out of it|is no file"):
        store.load(layout)


@pytest.mark.parametrize(
    "content", [b"[]", b"[" * 100_000, b"7", b'{"manifests": [7]}', b'{"manifests": [{"digest": 7}]}']
)
def test_an_index_that_is_none_is_damage(tmp_path: Path, store: ImageStore, content: bytes) -> None:
    with pytest.raises(ImageError):
        store.load(change(oci_tar(tmp_path / "a.tar"), {"index.json": content}))


def test_links_in_an_archive_that_lead_in_circles_are_damage(tmp_path: Path, store: ImageStore) -> None:
    tar = write_tar(tmp_path / "a.tar", {"oci-layout": b"{}"}, {"index.json": "b", "b": "index.json"})
    with pytest.raises(ImageError):
        store.load(tar)


class Registry(Remote):
    """Has everything, and takes everything."""

    def __init__(self) -> None:
        super().__init__("example.org", "multi", None)

    def log_in(self) -> None:
        pass

    def has_blob(self, digest: str) -> bool:
        return bool(digest)

    def put_manifest(self, reference: str, media_type: str, content: bytes) -> None:
        pass


def layout_of(path: Path, document: dict[str, Any], described: str = MANIFEST) -> Path:
    """A layout of the tiny image whose only entry is a document: its manifest with changes."""
    layout = unpacked(oci_tar(path / "tiny.tar"), path / "layout")
    [entry] = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads((layout / "blobs" / entry["digest"].replace(":", "/")).read_text())
    content = json.dumps(manifest | document).encode()
    (layout / "blobs" / digest_of(content).replace(":", "/")).write_bytes(content)
    entry |= {"mediaType": described, "digest": digest_of(content), "size": len(content)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return layout


@pytest.mark.parametrize("media_type", [MANIFEST, INDEX, None])
@pytest.mark.parametrize("described", [MANIFEST, INDEX])
@pytest.mark.parametrize("child", [{"digest": 5}, {"digest": "/some/dir"}, {}])
def test_what_is_an_index_and_a_manifest_is_refused_before_it_has_a_name(
    tmp_path: Path, store: ImageStore, media_type: str | None, described: str, child: dict[str, Any]
) -> None:
    with pytest.raises(ImageError, match="an index and a manifest at once"):
        store.load(layout_of(tmp_path, {"mediaType": media_type, "manifests": [child]}, described))
    assert files(store) == set()
    assert store.list() == []


@pytest.mark.parametrize("digest", ["/some/dir", "sha256:/some/dir", "sha256:../x", "sha512:" + "0" * 64, "", 5, None])
def test_only_a_digest_leads_to_content(store: ImageStore, digest: Any) -> None:
    with pytest.raises(ValueError, match="no SHA-256 digest"):
        store.blob(digest)


def test_what_an_earlier_version_has_stored_can_be_listed_and_removed(tmp_path: Path, store: ImageStore) -> None:
    [loaded] = store.load(oci_tar(tmp_path / "tiny.tar"))
    manifest = json.loads(store.blob(loaded.digest).read_text())
    store.blob(loaded.digest).write_text(json.dumps(manifest | {"manifests": [{"digest": 5}]}))
    assert names(store) == [NAME]
    store.remove(parse(NAME))
    assert store.list() == []
    assert blobs(store) == {}


def test_an_index_may_name_other_content_as_a_platform_that_is_not_there(tmp_path: Path, store: ImageStore) -> None:
    """A layer of another image: it is no manifest, whatever is in it."""
    [other] = store.load(oci_tar(tmp_path / "other.tar", "other:1", b"other"))
    layer = json.loads(store.blob(other.digest).read_text())["layers"][0]["digest"]
    layout = unpacked(oci_tar(tmp_path / "tiny.tar"), tmp_path / "layout")
    [entry] = json.loads((layout / "index.json").read_text())["manifests"]
    absent = {"mediaType": MANIFEST, "digest": layer, "size": 1}
    content = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry, absent]}).encode()
    (layout / "blobs" / digest_of(content).replace(":", "/")).write_bytes(content)
    outer = {"mediaType": INDEX, "digest": digest_of(content), "size": len(content)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [outer]}))
    store.load(layout, "multi:1")
    assert len(names(store)) == 2
    with pytest.raises(ImageError, match="is damaged"):
        push(store, digest_of(content), Registry(), "1", lambda _: None)
