"""Pushes an image of the store to a registry: blobs first, the tag last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pinnace.images.archive import as_image_errors
from pinnace.images.oci import INDICES, digest_of, media_type_of, referenced_digests

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.images.remote import Remote
    from pinnace.images.store import ImageStore


def push(store: ImageStore, digest: str, remote: Remote, tag: str, report: Callable[[str], None]) -> str:
    """Push a manifest or index of the store and tag it. Returns the digest that the registry has for the tag."""
    remote.log_in()
    media_type, content = _send(store, digest, remote, report, set())
    remote.put_manifest(tag, media_type, content)
    return digest_of(content)


def _send(
    store: ImageStore, digest: str, remote: Remote, report: Callable[[str], None], sent: set[str]
) -> tuple[str, bytes]:
    """Send everything below a manifest or index that was not sent yet. Returns its media type and content."""
    with as_image_errors(digest):
        content = store.document(digest)
        document = json.loads(content)
        media_type = media_type_of(document)
        referenced_digests(document)  # ValueError if any is not a digest
    if media_type not in INDICES:
        _send_blobs(store, [document["config"], *document["layers"]], remote, report)
        return media_type, content
    there = [child for child in document["manifests"] if store.blob(child["digest"]).exists()]
    for child in there:
        if child["digest"] not in sent:
            sent.add(child["digest"])
            child_type, child_content = _send(store, child["digest"], remote, report, sent)
            remote.put_manifest(child["digest"], child_type, child_content)
    if len(there) < len(document["manifests"]):  # registries refuse an index with missing platforms
        report("platforms that were not loaded are left out")
        content = json.dumps(document | {"manifests": there}).encode()
    return media_type, content


def _send_blobs(store: ImageStore, parts: list[dict[str, Any]], remote: Remote, report: Callable[[str], None]) -> None:
    missing = {part["digest"]: part["size"] for part in parts if not remote.has_blob(part["digest"])}
    for number, (digest, size) in enumerate(missing.items(), 1):
        report(f"sending {number} of {len(missing)} ({size / 2**20:.1f} MiB)")
        remote.put_blob(digest, store.blob(digest))
