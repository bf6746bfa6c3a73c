"""Reads images from files: OCI layouts (tar or directory), and docker-archives, as ``docker save`` writes them.

Archives are untrusted: manifests are verified here, blobs when they are copied.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import lzma
import tarfile
import zlib
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol

from pinnace.errors import ImageError
from pinnace.images.oci import CONFIG, INDICES, LAYER, MANIFEST, MANIFESTS, checked_digest, digest_of, media_type_of
from pinnace.images.reference import Reference, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
CHUNK_SIZE = 1 << 20
MAX_MANIFEST_SIZE = 4 << 20  # what registries accept
MAX_INDEX_DEPTH = 8  # of nested indices; two are unusual
MAX_MANIFESTS = 1000  # of an archive: platforms and attestations
MAX_FILES = 100_000  # in an archive


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A blob of an image, and how to open it."""

    digest: str
    size: int
    open: Callable[[], IO[bytes]]

    def __post_init__(self) -> None:
        checked_digest(self.digest)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image with all its parts. ``digest`` is that of the manifest or index that its name refers to."""

    name: Reference
    digest: str
    manifests: dict[str, bytes]
    blobs: dict[str, Blob]


# What reading a damaged or malicious archive can raise.
DAMAGE_ERRORS = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError, KeyError,
                 TypeError, AttributeError, IndexError, RecursionError)  # fmt: skip


class Source(Protocol):
    """The files of an archive, by name."""

    def open(self, name: str) -> IO[bytes]: ...
    def size(self, name: str) -> int: ...


class DirectorySource:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> IO[bytes]:
        return self._file(name).open("rb")

    def size(self, name: str) -> int:
        return self._file(name).stat().st_size

    def _file(self, name: str) -> Path:
        """A regular file in the directory; links must not lead out of it."""
        path = (self._path / name).resolve()
        if not path.is_relative_to(self._path.resolve()):
            raise ValueError(f"{name!r} leads out of it")
        if not path.exists():
            raise FileNotFoundError(name)
        if not path.is_file():
            raise ValueError(f"{name!r} is no file")
        return path


class TarSource:
    """A tar, compressed or not."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members = {member.name.removeprefix("./"): member for member in itertools.islice(tar, MAX_FILES)}
        if len(self._members) == MAX_FILES:
            raise ValueError(f"it has more than {MAX_FILES} files")

    def open(self, name: str) -> IO[bytes]:
        file = self._tar.extractfile(self._member(name))
        if file is None:
            raise FileNotFoundError(name)
        return file

    def size(self, name: str) -> int:
        with self.open(name) as file:  # not the member's own: old `docker save` has links for equal layers
            return file.seek(0, io.SEEK_END)

    def _member(self, name: str) -> tarfile.TarInfo:
        try:
            return self._members[name]
        except KeyError:
            raise FileNotFoundError(name) from None


@contextlib.contextmanager
def images_in(path: Path, name: str | None = None, called: str = "") -> Iterator[list[Image]]:
    """The images of a file or directory, readable while the context lasts. ``name`` replaces the archive's own name."""
    called = called or str(path)
    with contextlib.ExitStack() as stack:
        with as_image_errors(called):
            if path.is_dir():
                source: Source = DirectorySource(path)
            else:
                source = TarSource(stack.enter_context(tarfile.open(path)))
            images = _read(source, called, name)
            if name and len({image.digest for image in images}) > 1:
                raise ImageError(f"{called} has several images, which cannot all be {name}", hint="Leave out --as.")
        yield images


@contextlib.contextmanager
def as_image_errors(called: str) -> Iterator[None]:
    """Turn all errors of reading an archive into ImageError. ``called`` is its name in messages."""
    hint = "An image is an OCI layout (a tar or a directory) or what `docker save` writes."
    try:
        yield
    except FileNotFoundError as error:
        raise ImageError(
            f"{called} has no {error.filename or error}: it is incomplete, or no image", hint=hint
        ) from None
    except PermissionError as error:
        raise ImageError(f"no permission for {error.filename or called}") from None
    except tarfile.ReadError as error:
        raise ImageError(f"{called} is no image, or is damaged: {error}", hint=hint) from None
    except DAMAGE_ERRORS as error:
        raise ImageError(f"{called} is damaged: {error}", hint="Make or copy it again.") from None


def _read(source: Source, called: str, name: str | None) -> list[Image]:
    images = _oci_images(source, name) if _has(source, "oci-layout") else []
    if not images and _has(source, "manifest.json"):
        return _docker_images(source, called, name)
    if not images:
        source.size("index.json")  # FileNotFoundError if this is not an image at all
        raise ImageError(f"the image in {called} has no name", hint="Give it one: --as NAME.")
    return images


def _has(source: Source, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return source.size(name) > 0
    return False


def _oci_images(source: Source, name: str | None) -> list[Image]:
    walk = _ManifestWalk(source)
    images = []
    for entry in json.loads(_read_manifest(source, "index.json"))["manifests"]:
        names = [entry.get("annotations", {}).get(key, "") for key in NAME_ANNOTATIONS]
        given = name or next((text for text in names if "/" in text or ":" in text), None)  # a tag alone is not a name
        if given is None:
            continue
        image = Image(name=parse(given), digest=entry["digest"], manifests={}, blobs={})
        walk.collect(image, entry)
        images.append(image)
    return images


class _ManifestWalk:
    """Traverses the manifests of an archive: each is read once per image, and their number is bounded."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = MAX_MANIFESTS

    def collect(self, image: Image, descriptor: dict[str, Any]) -> None:
        """Add a manifest or index and all below it. An index may lack some platforms, but not all."""
        self._visit(image, descriptor, MAX_INDEX_DEPTH, {})

    def _visit(self, image: Image, descriptor: dict[str, Any], depth: int, missing: dict[str, str]) -> None:
        digest = descriptor["digest"]
        if digest in image.manifests:
            return
        if digest in missing:
            raise FileNotFoundError(missing[digest])
        self._left -= 1
        if not depth or self._left < 0:
            raise ValueError(f"{image.name} has too many manifests, in one another or altogether")
        try:
            content = self._read(image, descriptor, depth, missing)
        except FileNotFoundError as error:
            missing[digest] = str(error.filename or error)
            raise
        image.manifests[digest] = content

    def _read(self, image: Image, descriptor: dict[str, Any], depth: int, missing: dict[str, str]) -> bytes:
        digest = descriptor["digest"]
        content = _read_manifest(self._source, _blob_path(digest))
        if digest_of(content) != digest:
            raise ImageError(
                f"the manifest {digest} of {image.name} is damaged", hint="Make or copy the archive again."
            )
        document = json.loads(content)
        kind = media_type_of(document, descriptor.get("mediaType"))
        if kind in INDICES:
            found = False
            for child in document["manifests"]:
                with contextlib.suppress(FileNotFoundError):
                    self._visit(image, child, depth - 1, missing)
                    found = True
            if not found:
                raise FileNotFoundError(f"platform of {image.name}")
        elif kind in MANIFESTS:
            image.blobs.update({part["digest"]: _blob(self._source, image, part) for part in _descriptors(document)})
        else:
            raise ImageError(f"{image.name} is a {kind}, which is no image")
        return content


def _descriptors(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [manifest["config"], *manifest["layers"]]


def _blob(source: Source, image: Image, descriptor: dict[str, Any]) -> Blob:
    digest, size = descriptor["digest"], descriptor["size"]
    if source.size(_blob_path(digest)) != size:
        raise ImageError(f"{digest} of {image.name} is damaged", hint="Make or copy the archive again.")
    return Blob(digest=digest, size=size, open=partial(source.open, _blob_path(digest)))


def _docker_images(source: Source, called: str, name: str | None) -> list[Image]:
    """The images of a docker-archive: layers are tars, whose digests the configuration has; we write the manifest."""
    images = []
    for entry in json.loads(_read_manifest(source, "manifest.json")):
        config = _read_manifest(source, entry["Config"])
        diff_ids = json.loads(config)["rootfs"]["diff_ids"]
        if len(diff_ids) != len(entry["Layers"]):
            raise ImageError(f"{called} is damaged: the numbers of its layers differ")
        layers = [
            _docker_layer(source, place, diff_id) for place, diff_id in zip(entry["Layers"], diff_ids, strict=True)
        ]
        stored = Blob(digest=digest_of(config), size=len(config), open=partial(source.open, entry["Config"]))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": stored.digest, "size": stored.size},
            "layers": [{"mediaType": kind, "digest": blob.digest, "size": blob.size} for kind, blob in layers],
        }
        content = json.dumps(manifest).encode()
        blobs = {blob.digest: blob for blob in (stored, *(blob for _, blob in layers))}
        names = [name] if name else entry["RepoTags"] or []
        if not names:
            raise ImageError(f"the image in {called} has no name", hint="Give it one: --as NAME.")
        images += [
            Image(name=parse(given), digest=digest_of(content), manifests={digest_of(content): content}, blobs=blobs)
            for given in names
        ]
    return images


def _docker_layer(source: Source, place: str, diff_id: str) -> tuple[str, Blob]:
    """A layer's media type and blob. The digest of a compressed layer is not the one in the configuration."""
    with source.open(place) as file:
        compressed = file.read(2) == b"\x1f\x8b"
    size = source.size(place)
    if not compressed:
        return LAYER.removesuffix("+gzip"), Blob(digest=diff_id, size=size, open=partial(source.open, place))
    with source.open(place) as file, gzip.open(file) as plain:
        if _digest_of_file(plain) != diff_id:
            raise ImageError(f"{place} is damaged: it is not what the image's configuration says")
    with source.open(place) as file:
        return LAYER, Blob(digest=_digest_of_file(file), size=size, open=partial(source.open, place))


def _digest_of_file(file: IO[bytes] | gzip.GzipFile) -> str:
    state = hashlib.sha256()
    while chunk := file.read(CHUNK_SIZE):
        state.update(chunk)
    return f"sha256:{state.hexdigest()}"


def _read_manifest(source: Source, name: str) -> bytes:
    if source.size(name) > MAX_MANIFEST_SIZE:
        raise ValueError(f"{name} is too large")
    with source.open(name) as file:
        return file.read(MAX_MANIFEST_SIZE)


def _blob_path(digest: str) -> str:
    return f"blobs/{checked_digest(digest).replace(':', '/')}"
