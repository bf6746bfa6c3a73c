"""The user's images, in the file-system layout of upstream's registry, written without one.

    registry/docker/registry/v2/blobs/sha256/ab/abc…/data                          content, by digest
                               /repositories/NAME/_layers/sha256/abc…/link         what belongs to a name
                               /repositories/NAME/_manifests/revisions/…/link
                               /repositories/NAME/_manifests/tags/TAG/current/link
    hosts/REGISTRY/hosts.toml                                                      whom containerd asks first
    .staging-…                                                                     of a load that is under way

A load verifies all content in its staging directory, then renames it into place, blobs first and the tag last. So a
registry that reads at any moment, on any node, sees the old image or the new one, and two loads may run at once: they
rename the same content to the same place.
"""

from __future__ import annotations

import contextlib
import errno
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
from pinnace.errors import ImageError
from pinnace.images.archive import DAMAGED, LARGEST_MANIFEST, PIECE, Blob, Image, explained, images_in
from pinnace.images.oci import checked_digest, named_in
from pinnace.images.reference import Reference
from pinnace.images.registry import hosts_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An image that the store has. ``size`` is what its parts take, compressed as they are."""

    name: Reference
    digest: str
    size: int


class Store:
    """A user's images, for all clusters of that user."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry = root / "registry"
        self.hosts = root / "hosts"
        self._blobs = self.registry / "docker/registry/v2/blobs/sha256"
        self._repositories = self.registry / "docker/registry/v2/repositories"

    def prepare(self) -> None:
        """Make the directories, so that registries have something to serve."""
        for path in (self.root, self.hosts, self._blobs, self._repositories):
            ownership.make_directories(path)

    def load(self, path: Path, name: str | None = None, *, called: str = "") -> list[Stored]:
        """Take over the images of a file or directory; all of them or none. ``called`` is how messages name it."""
        self.prepare()
        called = called or str(path)
        with images_in(path, name, called) as images, self._lock(fcntl.LOCK_SH):
            staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.root))
            try:
                with explained(called):
                    for image in images:
                        self._stage(image, staging)
                for file in staging.iterdir():
                    target = self.blob(f"sha256:{file.name}")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    file.rename(target)
                return [self._publish(image) for image in images]
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def load_stream(self, stream: IO[bytes], name: str | None, *, called: str) -> list[Stored]:
        """The same from a pipe, whose end has to be seen before its beginning can be read."""
        self.prepare()
        with self._lock(fcntl.LOCK_SH):
            staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.root))
            try:
                with (staging / "archive").open("wb") as file:
                    shutil.copyfileobj(stream, file, PIECE)
                return self.load(staging / "archive", name, called=called)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def _stage(self, image: Image, staging: Path) -> None:
        """Copy what is not there yet, and verify it. What is there was verified when it came."""
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

    def _publish(self, image: Image) -> Stored:
        """Let the name mean the image. The tag comes last."""
        repository = self._repositories / image.name.repository
        for digest in image.blobs:
            _link(repository / "_layers" / digest.replace(":", "/"), digest)
        for digest in image.manifests:
            _link(repository / "_manifests/revisions" / digest.replace(":", "/"), digest)
        hosts = self.hosts / image.name.registry
        hosts.mkdir(exist_ok=True)
        _write(hosts / "hosts.toml", hosts_toml(image.name.registry))
        tag = repository / "_manifests/tags" / image.name.tag
        _link(tag / "index" / image.digest.replace(":", "/"), image.digest)
        _link(tag / "current", image.digest)
        return self._stored(image.name, image.digest)

    def list(self) -> list[Stored]:
        """All images, by name."""
        found = []
        for link in self._repositories.glob("**/_manifests/tags/*/current/link"):
            tag, repository = link.parents[1].name, link.parents[4].relative_to(self._repositories)
            with contextlib.suppress(OSError, ValueError):  # removed just now, or no digest
                found.append(self._stored(Reference.of_repository(str(repository), tag), link.read_text()))
        return sorted(found, key=lambda stored: str(stored.name))

    def find(self, name: Reference) -> Stored:
        """What a name means."""
        link = self._repositories / name.repository / "_manifests/tags" / name.tag / "current/link"
        try:
            return self._stored(name, link.read_text())
        except (OSError, ValueError):
            raise no_image(name) from None

    def remove(self, name: Reference) -> None:
        """Forget a name, and all content that no other name needs."""
        tag = self._repositories / name.repository / "_manifests/tags" / name.tag
        self.prepare()
        with self._lock(fcntl.LOCK_EX) as alone:
            if not tag.is_dir():
                raise no_image(name)
            shutil.rmtree(tag)
            if alone:
                self._collect_garbage()

    def _collect_garbage(self) -> None:
        """Nobody loads meanwhile. What a load that was killed has left goes as well."""
        for left in self.root.glob(".staging-*"):
            shutil.rmtree(left, ignore_errors=True)
        wanted = {digest for stored in self.list() for digest in self._reachable(stored.digest)}
        for link in list(self._repositories.glob("**/link")):
            if "tags" not in link.parts[-6:] and link.read_text() not in wanted:
                shutil.rmtree(link.parent)
        for data in list(self._blobs.glob("*/*/data")):
            if f"sha256:{data.parent.name}" not in wanted:
                shutil.rmtree(data.parent)

    def _stored(self, name: Reference, digest: str) -> Stored:
        parts = self._reachable(digest)
        return Stored(name=name, digest=digest, size=sum(self.blob(part).stat().st_size for part in parts))

    def _reachable(self, digest: str) -> set[str]:
        """What a manifest or index needs, with itself. The parts that are not there are other platforms'."""
        found: set[str] = set()
        left = [digest]
        while left:
            digest = left.pop()
            if digest in found or not self.blob(digest).exists():
                continue
            found.add(digest)
            manifests, parts = self._named_in(digest)
            left += manifests
            found |= parts
        return found

    def _named_in(self, digest: str) -> tuple[set[str], set[str]]:
        """The digests in a manifest or index. What is neither names nothing: an index can name any other content."""
        try:
            return named_in(json.loads(self.document(digest)))
        except DAMAGED:
            return set(), set()

    def document(self, digest: str) -> bytes:
        """A manifest or index."""
        path = self.blob(digest)
        if path.stat().st_size > LARGEST_MANIFEST:
            raise ValueError(f"{digest} is too large for a manifest")
        return path.read_bytes()

    def blob(self, digest: str) -> Path:
        """Where the content of a digest is, if it is there."""
        value = checked_digest(digest).removeprefix("sha256:")
        return self._blobs / value[:2] / value / "data"

    @contextlib.contextmanager
    def _lock(self, kind: int) -> Iterator[bool]:
        """Loads share it, removal is alone. Whether it was got: not every parallel file system has locks."""
        with (self.root / ".lock").open("ab") as file:
            try:
                fcntl.flock(file, kind)
                held = True
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                held = False
            yield held


def no_image(name: Reference) -> ImageError:
    return ImageError(f"there is no image {name}", hint="See `pinnace image list`.")


def _copy(blob: Blob, target: Path, name: Reference) -> None:
    state, size = hashlib.sha256(), 0
    with blob.open() as source, target.open("wb") as file:
        while size <= blob.size and (piece := source.read(PIECE)):
            state.update(piece)
            size += len(piece)
            file.write(piece)
    if f"sha256:{state.hexdigest()}" != blob.digest or size != blob.size:
        target.unlink()
        raise ImageError(f"{blob.digest} of {name} is damaged", hint="Make or copy the archive again.")


def _link(directory: Path, digest: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "link", digest)


def _write(path: Path, text: str) -> None:
    """It appears whole or not at all."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    descriptor, unfinished = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(unfinished).rename(path)
