"""The store of the user's images, in the file-system layout of upstream's registry, written without a registry.

    registry/docker/registry/v2/blobs/sha256/ab/abc…/data                          content, by digest
                               /repositories/NAME/_layers/sha256/abc…/link         what belongs to a name
                               /repositories/NAME/_manifests/revisions/…/link
                               /repositories/NAME/_manifests/tags/TAG/current/link
    hosts/REGISTRY/hosts.toml                                                      containerd's mirror configuration
    .staging-…                                                                     of a load in progress

A load verifies all content in its staging directory, then renames it into place, blobs first and the tag last. So a
registry on any node sees the old image or the new one at any moment, and two loads may run at once: they rename the
same content to the same path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pinnace import ownership
from pinnace.components.store import NO_LOCKS_ERRNOS
from pinnace.errors import ImageError
from pinnace.images import tags
from pinnace.images.archive import CHUNK_SIZE, DAMAGE_ERRORS, MAX_MANIFEST_SIZE, Blob, Image, as_image_errors, images_in
from pinnace.images.oci import checked_digest, referenced_digests
from pinnace.images.reference import Reference
from pinnace.images.registry import hosts_toml

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image in the store. ``size`` is the sum of its parts as they are stored, compressed."""

    name: Reference
    digest: str
    size: int


class ImageStore:
    """A user's images, for all clusters of that user."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry = root / "registry"
        self.hosts = root / "hosts"
        self._blobs = tags.blobs(root)
        self._repositories = tags.repositories(root)

    def prepare(self) -> None:
        """Make the directories, which registries expect."""
        for path in (self.root, self.hosts, self._blobs, self._repositories):
            ownership.make_directories(path)

    def load(self, path: Path, name: str | None = None, *, called: str = "") -> list[StoredImage]:
        """Load the images of a file or directory, all of them or none. ``called`` is its name in messages."""
        self.prepare()
        called = called or str(path)
        with images_in(path, name, called) as images, self._lock(fcntl.LOCK_SH):
            staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.root))
            try:
                with as_image_errors(called):
                    for image in images:
                        self._stage(image, staging)
                for file in staging.iterdir():
                    target = self.blob(f"sha256:{file.name}")
                    ownership.make_directories(target.parent)
                    file.chmod(file.stat().st_mode & ~0o022)
                    file.rename(target)
                return [self._publish(image) for image in images]
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def load_stream(self, stream: IO[bytes], name: str | None, *, called: str) -> list[StoredImage]:
        """Load from a pipe. It is copied to a file first, because reading an archive needs seeking."""
        self.prepare()
        with self._lock(fcntl.LOCK_SH):
            staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.root))
            try:
                with (staging / "archive").open("wb") as file:
                    shutil.copyfileobj(stream, file, CHUNK_SIZE)
                return self.load(staging / "archive", name, called=called)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def _stage(self, image: Image, staging: Path) -> None:
        """Copy and verify the blobs that the store does not have. Those that it has were verified before."""
        for digest, content in image.manifests.items():
            (staging / digest.removeprefix("sha256:")).write_bytes(content)
        for blob in image.blobs.values():
            target = staging / blob.digest.removeprefix("sha256:")
            if not target.exists() and not self._has(blob):
                _copy(blob, target, image.name)

    def _has(self, blob: Blob) -> bool:
        with contextlib.suppress(OSError):
            return self.blob(blob.digest).stat().st_size == blob.size
        return False

    def _publish(self, image: Image) -> StoredImage:
        """Make the image visible under its name. The tag is written last."""
        repository = self._repositories / image.name.repository
        for digest in image.blobs:
            _link(repository / "_layers" / digest.replace(":", "/"), digest)
        for digest in image.manifests:
            _link(repository / "_manifests/revisions" / digest.replace(":", "/"), digest)
        hosts = self.hosts / image.name.registry
        ownership.make_directories(hosts)
        _write(hosts / "hosts.toml", hosts_toml(image.name.registry))
        tag = tags.tag(self.root, image.name)
        _link(tag / "index" / image.digest.replace(":", "/"), image.digest)
        _link(tag / "current", image.digest)
        return self._stored(image.name, image.digest)

    def list(self) -> list[StoredImage]:
        """All images, by name."""
        found = []
        for link in self._repositories.glob(f"**/_manifests/tags/*/{tags.CURRENT}"):
            tag, repository = link.parents[1].name, link.parents[4].relative_to(self._repositories)
            with contextlib.suppress(OSError, ValueError):  # removed just now, or not a digest
                found.append(self._stored(Reference.of_repository(str(repository), tag), link.read_text()))
        return sorted(found, key=lambda stored: str(stored.name))

    def find(self, name: Reference) -> StoredImage:
        """The image with this name."""
        try:
            return self._stored(name, (tags.tag(self.root, name) / tags.CURRENT).read_text())
        except (OSError, ValueError):
            raise no_image(name) from None

    def remove(self, name: Reference) -> None:
        """Remove a name, and all content that no other name needs."""
        tag = tags.tag(self.root, name)
        self.prepare()
        with self._lock(fcntl.LOCK_EX) as alone:
            if not tag.is_dir():
                raise no_image(name)
            shutil.rmtree(tag)
            if alone:
                self._collect_garbage()

    def _collect_garbage(self) -> None:
        """Remove unreferenced content, and the staging directories of killed loads. The caller holds the lock alone."""
        for left in self.root.glob(".staging-*"):
            shutil.rmtree(left, ignore_errors=True)
        wanted = {digest for stored in self.list() for digest in self._reachable(stored.digest)}
        for link in list(self._repositories.glob("**/link")):
            if "tags" not in link.parts[-6:] and link.read_text() not in wanted:
                shutil.rmtree(link.parent)
        for data in list(self._blobs.glob("*/*/data")):
            if f"sha256:{data.parent.name}" not in wanted:
                shutil.rmtree(data.parent)

    def _stored(self, name: Reference, digest: str) -> StoredImage:
        parts = self._reachable(digest)
        return StoredImage(name=name, digest=digest, size=sum(self.blob(part).stat().st_size for part in parts))

    def _reachable(self, digest: str) -> set[str]:
        """The digests of a manifest or index and of all below it. Missing parts belong to other platforms."""
        found: set[str] = set()
        left = [digest]
        while left:
            digest = left.pop()
            if digest in found or not self.blob(digest).exists():
                continue
            found.add(digest)
            manifests, parts = self._referenced_digests(digest)
            left += manifests
            found |= parts
        return found

    def _referenced_digests(self, digest: str) -> tuple[set[str], set[str]]:
        """The digests in a manifest or index; none for other content, which an index can refer to as well."""
        try:
            return referenced_digests(json.loads(self.document(digest)))
        except DAMAGE_ERRORS:
            return set(), set()

    def document(self, digest: str) -> bytes:
        """A manifest or index."""
        path = self.blob(digest)
        if path.stat().st_size > MAX_MANIFEST_SIZE:
            raise ValueError(f"{digest} is too large for a manifest")
        return path.read_bytes()

    def blob(self, digest: str) -> Path:
        """The path of a blob, whether it exists or not."""
        return tags.blob(self.root, checked_digest(digest))

    @contextlib.contextmanager
    def _lock(self, kind: int) -> Iterator[bool]:
        """Loads share the lock, removal has it alone. Gives whether it is held: some file systems have no locks."""
        with open(self.root / ".lock", "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            try:
                fcntl.flock(file, kind)
                held = True
            except OSError as error:
                if error.errno not in NO_LOCKS_ERRNOS:
                    raise
                held = False
            yield held


def no_image(name: Reference) -> ImageError:
    return ImageError(f"there is no image {name}", hint="See `pinnace image list`.")


def _copy(blob: Blob, target: Path, name: Reference) -> None:
    state, size = hashlib.sha256(), 0
    with blob.open() as source, target.open("wb") as file:
        while size <= blob.size and (chunk := source.read(CHUNK_SIZE)):
            state.update(chunk)
            size += len(chunk)
            file.write(chunk)
    if f"sha256:{state.hexdigest()}" != blob.digest or size != blob.size:
        target.unlink()
        raise ImageError(f"{blob.digest} of {name} is damaged", hint="Make or copy the archive again.")


def _link(directory: Path, digest: str) -> None:
    ownership.make_directories(directory)
    _write(directory / "link", digest)


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    descriptor, unfinished = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(unfinished).rename(path)
