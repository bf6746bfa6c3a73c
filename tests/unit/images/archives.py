"""Images as files, made from a few bytes."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

from pinnace.images.oci import digest_of, one_binary_image

if TYPE_CHECKING:
    from pathlib import Path

NAME = "localhost/test/tiny:1"


def oci_tar(path: Path, name: str = NAME, content: bytes = b"content", level: int = 1) -> Path:
    binary = path.parent / "binary"
    binary.write_bytes(content)
    path.write_bytes(one_binary_image(binary, name, "amd64", level))
    return path


def unpacked(tar: Path, target: Path) -> Path:
    with tarfile.open(tar) as archive:
        archive.extractall(target, filter="data")
    return target


def change(tar: Path, changes: dict[str, bytes | None]) -> Path:
    """Replace files of a tar, or leave them out."""
    with tarfile.open(tar) as archive:
        files = {member.name: stream.read() for member in archive if (stream := archive.extractfile(member))}
    files |= {name: data for name, data in changes.items() if data is not None}
    write_tar(tar, {name: data for name, data in files.items() if changes.get(name, b"") is not None})
    return tar


def with_environment(tar: Path, target: Path, **variables: str) -> Path:
    """The same image with variables in its environment. It has the same layers and another digest."""
    with tarfile.open(tar) as archive:
        files = {member.name: stream.read() for member in archive if (stream := archive.extractfile(member))}

    def put(content: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(content).encode()
        files[f"blobs/{digest_of(data).replace(':', '/')}"] = data
        return {"digest": digest_of(data), "size": len(data)}

    def get(descriptor: dict[str, Any]) -> Any:
        return json.loads(files[f"blobs/{descriptor['digest'].replace(':', '/')}"])

    index = json.loads(files["index.json"])
    manifest = get(index["manifests"][0])
    config = get(manifest["config"])
    config["config"]["Env"] = [
        *config["config"].get("Env", ()),
        *(f"{key}={value}" for key, value in variables.items()),
    ]
    manifest["config"] |= put(config)
    index["manifests"][0] |= put(manifest)
    files["index.json"] = json.dumps(index).encode()
    return write_tar(target, files)


def names_in(tar: Path) -> list[str]:
    with tarfile.open(tar) as archive:
        return archive.getnames()


def layer_of(tar: Path) -> str:
    """The name of the largest blob in a tar."""
    with tarfile.open(tar) as archive:
        return max((member for member in archive if "blobs" in member.name), key=lambda member: member.size).name


def write_tar(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def docker_tar(path: Path, *, tags: list[str] | None, compressed: bool = False) -> Path:
    """What ``docker save`` of old writes: two layers, of which the second is a link to the first."""
    layer = write_tar(path.with_suffix(".layer"), {"file": b"of a layer"}).read_bytes()
    config: dict[str, Any] = {"architecture": "amd64", "os": "linux"}
    config["rootfs"] = {"type": "layers", "diff_ids": [digest_of(layer)] * 2}
    manifest = [{"Config": "config.json", "RepoTags": tags, "Layers": ["a/layer.tar", "b/layer.tar"]}]
    files = {
        "a/layer.tar": gzip.compress(layer) if compressed else layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    return write_tar(path, files, {"b/layer.tar": "../a/layer.tar"})
