"""Where the user's store of images has its content and its tags, and which image a name means there.

Apart from ``images.store``, which loads far more: agents ask before they have anything else to do with images.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pinnace.errors import ImageError
from pinnace.images import reference

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

REGISTRY = "registry/docker/registry/v2"  # as registries have it, in the store's directory
CURRENT = "current/link"  # the file in the directory of a tag that has the digest of its image


def blobs(store: Path) -> Path:
    return store / REGISTRY / "blobs/sha256"


def blob(store: Path, digest: str) -> Path:
    """The path of content, whether it exists or not."""
    value = digest.removeprefix("sha256:")
    return blobs(store) / value[:2] / value / "data"


def repositories(store: Path) -> Path:
    return store / REGISTRY / "repositories"


def tag(store: Path, image: reference.Reference) -> Path:
    """The directory of a tag."""
    return repositories(store) / image.repository / "_manifests/tags" / image.tag


def digests(store: Path, names: Iterable[str]) -> dict[str, str]:
    """The digests of those of these images that the store has, by name."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError, ImageError):  # a pull says what is wrong with it
            digest = (tag(store, reference.parse(name)) / CURRENT).read_text()
            if reference.DIGEST.fullmatch(digest):
                found[name] = digest
    return found
