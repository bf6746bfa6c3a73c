"""Tiny images from files in memory, and a reader that believes nothing an image says about itself."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.images.cache import Cache
from testbed.images.entries import Entry, directory, file, link
from testbed.images.oci import Command
from testbed.images.recipes import LayerRecipe, Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRIES = (directory("tmp", mode=0o1777), file("etc/motd", "hello\n"), link("bin", "usr/bin"))


def tiny_recipe(*entries: Entry, name: str = "tiny", layers: int = 1) -> dict[str, Recipe]:
    """Return a recipe that needs neither apt nor a compiler."""
    more = tuple(LayerRecipe(entries=(file(f"layer/{number}", "x"),)) for number in range(1, layers))
    recipe = Recipe(
        name=name, layers=(LayerRecipe(entries=entries or ENTRIES), *more), command=Command(cmd=("/bin/true",))
    )
    return {name: recipe}


def cache_in(path: Path) -> Cache:
    return Cache(root=path, debs=path / "debs")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """An image layout as read from its tar; every digest and size in it was checked."""

    reference: str
    digest: str
    config: dict[str, Any]
    manifest: dict[str, Any]
    layers: tuple[bytes, ...]

    def members(self, layer: int = 0) -> dict[str, tarfile.TarInfo]:
        with tarfile.open(fileobj=io.BytesIO(self.layers[layer])) as tar:
            return {member.name: member for member in tar}


def read_layout(path: Path) -> Layout:
    """Read an image, and check it against itself, as an importer would."""
    with tarfile.open(path) as tar:
        files = {member.name: stream.read() for member in tar if (stream := tar.extractfile(member))}
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    layers = tuple(gzip.decompress(blob(files, layer)) for layer in manifest["layers"])
    assert [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers] == config["rootfs"]["diff_ids"]
    named = {entry["digest"], manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}
    assert {f"blobs/{digest.replace(':', '/')}" for digest in named} | {"oci-layout", "index.json"} == set(files)
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == entry["annotations"]["io.containerd.image.name"]
    return Layout(
        reference=entry["annotations"]["io.containerd.image.name"],
        digest=entry["digest"],
        config=config,
        manifest=manifest,
        layers=layers,
    )


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert len(data) == descriptor["size"]
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == descriptor["digest"]
    return data


def unpack_layout(path: Path, root: Path) -> Iterator[str]:
    """Unpack the layers of an image one over the other, as root; yield the names."""
    for layer in read_layout(path).layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            for member in tar:
                there = root / member.name
                if member.isdir() and there.is_symlink():
                    there.unlink()
                tar.extract(member, root, numeric_owner=True, filter="fully_trusted")
                yield member.name
