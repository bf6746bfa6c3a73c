"""Sending an image of the store to a registry: content first, the name last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pinnace.images.archive import explained
from pinnace.images.oci import INDICES, digest_of, media_type_of, named_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.images.remote import Remote
    from pinnace.images.store import Store


def push(store: Store, digest: str, remote: Remote, tag: str, say: Callable[[str], None]) -> str:
    """Send what a digest of the store means, and call it ``tag`` there. Gives the digest that the registry has now."""
    remote.log_in()
    media_type, content = _send(store, digest, remote, say, set())
    remote.put_manifest(tag, media_type, content)
    return digest_of(content)


def _send(store: Store, digest: str, remote: Remote, say: Callable[[str], None], sent: set[str]) -> tuple[str, bytes]:
    """Everything below a manifest or index, unless it was sent already. Gives that itself, with its type."""
    with explained(digest):
        content = store.document(digest)
        document = json.loads(content)
        media_type = media_type_of(document)
        named_in(document)  # all of them are digests
    if media_type not in INDICES:
        _send_blobs(store, [document["config"], *document["layers"]], remote, say)
        return media_type, content
    there = [child for child in document["manifests"] if store.blob(child["digest"]).exists()]
    for child in there:
        if child["digest"] not in sent:
            sent.add(child["digest"])
            child_type, child_content = _send(store, child["digest"], remote, say, sent)
            remote.put_manifest(child["digest"], child_type, child_content)
    if len(there) < len(document["manifests"]):  # registries refuse an index with platforms that they have not
        say("platforms that were not loaded are left out")
        content = json.dumps(document | {"manifests": there}).encode()
    return media_type, content


def _send_blobs(store: Store, parts: list[dict[str, Any]], remote: Remote, say: Callable[[str], None]) -> None:
    missing = {part["digest"]: part["size"] for part in parts if not remote.has_blob(part["digest"])}
    for number, (digest, size) in enumerate(missing.items(), 1):
        say(f"sending {number} of {len(missing)} ({size / 2**20:.1f} MiB)")
        remote.put_blob(digest, store.blob(digest))
