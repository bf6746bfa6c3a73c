"""Names for images that containerd has the content of: those of the user's store, as they are now."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from pinnace.images import naming, tags
from pinnace.images.cache import BLOBS
from pinnace.images.oci import MANIFEST
from pinnace.images.store import ImageStore
from unit.images.archives import NAME, oci_tar

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    store = ImageStore(tmp_path / "store")
    store.load(oci_tar(tmp_path / "tiny.tar"))
    return store


def test_an_image_of_the_store(store: ImageStore) -> None:
    [stored] = store.list()
    [about] = naming.in_store(store.root, [NAME, "localhost/test/other:1", "not a name"])
    size = store.blob(stored.digest).stat().st_size
    assert about == {
        "mediaType": MANIFEST,
        "digest": stored.digest,
        "size": size,
        "annotations": {naming.NAME: NAME},
    }


def test_a_newer_image_of_the_same_name_has_another_digest(store: ImageStore, tmp_path: Path) -> None:
    before = tags.digests(store.root, [NAME])
    store.load(oci_tar(tmp_path / "newer.tar", content=b"newer"))
    after = tags.digests(store.root, [NAME])
    assert before.keys() == after.keys() == {NAME}
    assert before != after


def test_a_tag_that_is_no_digest_names_nothing(store: ImageStore) -> None:
    for link in store.root.glob("**/current/link"):
        link.write_text("sha256:../../etc/passwd")
    assert tags.digests(store.root, [NAME]) == {}
    assert naming.in_store(store.root, [NAME]) == []


def test_the_names_of_what_is_there_are_in_one_archive(store: ImageStore, tmp_path: Path) -> None:
    containerd = tmp_path / "containerd"
    wanted = [*naming.in_archive(oci_tar(tmp_path / "pause.tar", "pinnace.local/pause:latest", b"pause"))]
    wanted += naming.in_store(store.root, [NAME])
    assert naming.held(containerd, wanted) == []
    (containerd / BLOBS).mkdir(parents=True)
    (containerd / BLOBS / wanted[1]["digest"].removeprefix("sha256:")).touch()
    known = naming.held(containerd, wanted)
    assert [about["annotations"][naming.NAME] for about in known] == [NAME]
    with tarfile.open(fileobj=io.BytesIO(naming.names_archive(known))) as archive:
        assert archive.getnames() == ["oci-layout", "index.json"]
        index = archive.extractfile("index.json")
        assert index
        assert json.load(index)["manifests"] == known
