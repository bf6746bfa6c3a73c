"""Names for images whose content a node has from an earlier cluster.

Names are forgotten when a node ends, content is kept (see ``images.cache``). A pull would ask the registry for every
part of an image, only to find it on the disk. Instead, one small archive gives names to all images that are there: an
index without content. `ctr images import` takes what an archive does not have from containerd's own content.

The names and digests are those of the user's store at this moment, which a pull would get, too.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from typing import TYPE_CHECKING, Any

from pinnace.images import tags
from pinnace.images.cache import has_content
from pinnace.images.oci import INDEX, layout_archive, media_type_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    Descriptor = dict[str, Any]

NAME = "io.containerd.image.name"  # the annotation that `ctr images import` takes a name from
MAX_DOCUMENT = 4 << 20  # bytes of a manifest or index


def in_store(store: Path, names: Iterable[str]) -> list[Descriptor]:
    """The descriptors of those of these images that the user's store has, with their names."""
    found = []
    for name, digest in tags.digests(store, names).items():
        with contextlib.suppress(OSError, ValueError):  # a pull says what is wrong with it
            path = tags.blob(store, digest)
            if (size := path.stat().st_size) <= MAX_DOCUMENT:
                media_type = media_type_of(json.loads(path.read_bytes()))
                about = {"mediaType": media_type, "digest": digest, "size": size, "annotations": {NAME: name}}
                found.append(about)
    return found


def in_archive(archive: Path) -> list[Descriptor]:
    """The descriptors of the images of an archive in the OCI layout."""
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        descriptors: list[Descriptor] = json.load(index)["manifests"] if index else []
    return descriptors


def held(containerd: Path, descriptors: Iterable[Descriptor]) -> list[Descriptor]:
    """Those whose manifest, or index, is in containerd's directory. The parts of an image are kept with it."""
    return [about for about in descriptors if has_content(containerd, about["digest"])]


def names_archive(descriptors: Iterable[Descriptor]) -> bytes:
    """An archive for `ctr images import`."""
    return layout_archive({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(descriptors)}, {})
