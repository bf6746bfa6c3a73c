"""OCI manifests and indices, and images as single files, as ``ctr images import`` takes them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

from pinnace.images.reference import DIGEST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"
INDICES = {INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"}
MANIFESTS = {MANIFEST, "application/vnd.docker.distribution.manifest.v2+json"}


def one_binary_image(binary: Path, reference: str, arch: str, level: int = 1) -> bytes:
    """An image with one static binary in it, which it runs. The same binary gives the same bytes.

    It is made anew for every cluster, so little time is spent on compressing it.
    """
    layer = _tar({binary.name: (binary.read_bytes(), 0o755)})
    packed = gzip.compress(layer, level, mtime=0)
    config = {
        "architecture": arch,
        "os": "linux",
        "config": {"Entrypoint": [f"/{binary.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
    }
    blobs: dict[str, bytes] = {}

    def put(media_type: str, data: bytes, **more: object) -> dict[str, Any]:
        blobs[digest_of(data)] = data
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data), **more}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": put(CONFIG, json.dumps(config).encode()),
        "layers": [put(LAYER, packed)],
    }
    names = {"io.containerd.image.name": reference}
    platform = {"architecture": arch, "os": "linux"}
    entry = put(MANIFEST, json.dumps(manifest).encode(), annotations=names, platform=platform)
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    return layout_archive(index, blobs)


def layout_archive(index: dict[str, Any], blobs: Mapping[str, bytes]) -> bytes:
    """An archive in the OCI layout. ``blobs`` are by their digests."""
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    files |= {f"blobs/{digest.replace(':', '/')}": data for digest, data in blobs.items()}
    return _tar({name: (data, 0o644) for name, data in files.items()})


def checked_digest(digest: Any) -> str:
    """Validate a digest from an untrusted document: it becomes a file name."""
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256 digest")
    return digest


def media_type_of(document: dict[str, Any], descriptor_type: str | None = None) -> str:
    """The media type of a document: its own, or that of its descriptor, or by its fields.

    A document that one reader could take for an index and another for a manifest is refused (see CVE-2021-41190).
    """
    is_index, is_manifest = "manifests" in document, "config" in document or "layers" in document
    media_type = document.get("mediaType") or descriptor_type or (INDEX if is_index else MANIFEST)
    if (is_index and (is_manifest or media_type in MANIFESTS)) or (is_manifest and media_type in INDICES):
        raise ValueError("it is an index and a manifest at once")
    return str(media_type)


def referenced_digests(document: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The digests that a document refers to: of manifests, if it is an index, and of other content."""
    if media_type_of(document) in INDICES:
        return {checked_digest(child["digest"]) for child in document["manifests"]}, set()
    return set(), {checked_digest(part["digest"]) for part in (document["config"], *document["layers"])}


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (data, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
