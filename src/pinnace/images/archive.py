"""Reading images from files: OCI layouts (tar or directory), and what ``docker save`` writes.

Nothing that an archive says is believed: manifests are checked here, blobs when they are copied.
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

NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
PIECE = 1 << 20
LARGEST_MANIFEST = 4 << 20  # what registries accept
DEEPEST = 8  # indices in one another; two are unusual
MOST_MANIFESTS = 1000  # of an archive: platforms, and what is said about them
MOST_FILES = 100_000  # in an archive


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Content that an image consists of, and how to get at it."""

    digest: str
    size: int
    open: Callable[[], IO[bytes]]

    def __post_init__(self) -> None:
        checked_digest(self.digest)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image with everything that belongs to it. ``digest`` is that of the manifest or index that its name means."""

    name: Reference
    digest: str
    manifests: dict[str, bytes]
    blobs: dict[str, Blob]


# What reading an archive can end with, if somebody has made it so.
DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError, KeyError, TypeError,
           AttributeError, IndexError, RecursionError)  # fmt: skip


class Source(Protocol):
    """Files by name."""

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
        """A plain file that is in the directory, by whatever way."""
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
        self._members = {member.name.removeprefix("./"): member for member in itertools.islice(tar, MOST_FILES)}
        if len(self._members) == MOST_FILES:
            raise ValueError(f"it has more than {MOST_FILES} files")

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
    """The images of a file or directory, readable while the context lasts. ``name`` replaces an archive's own name."""
    called = called or str(path)
    with contextlib.ExitStack() as stack:
        with explained(called):
            if path.is_dir():
                source: Source = DirectorySource(path)
            else:
                source = TarSource(stack.enter_context(tarfile.open(path)))
            images = _read(source, called, name)
            if name and len({image.digest for image in images}) > 1:
                raise ImageError(f"{called} has several images, which cannot all be {name}", hint="Leave out --as.")
        yield images


@contextlib.contextmanager
def explained(called: str) -> Iterator[None]:
    """Whatever is wrong with a file, said in one message."""
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
    except DAMAGED as error:
        raise ImageError(f"{called} is damaged: {error}", hint="Make or copy it again.") from None


def _read(source: Source, called: str, name: str | None) -> list[Image]:
    images = _oci_images(source, name) if _has(source, "oci-layout") else []
    if not images and _has(source, "manifest.json"):
        return _docker_images(source, called, name)
    if not images:
        source.size("index.json")  # not there: then this is no image at all
        raise ImageError(f"the image in {called} has no name", hint="Give it one: --as NAME.")
    return images


def _has(source: Source, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return source.size(name) > 0
    return False


def _oci_images(source: Source, name: str | None) -> list[Image]:
    walk = _Walk(source)
    images = []
    for entry in json.loads(_small(source, "index.json"))["manifests"]:
        names = [entry.get("annotations", {}).get(key, "") for key in NAMES]
        given = name or next((text for text in names if "/" in text or ":" in text), None)  # a mere tag is no name
        if given is None:
            continue
        image = Image(name=parse(given), digest=entry["digest"], manifests={}, blobs={})
        walk.collect(image, entry)
        images.append(image)
    return images


class _Walk:
    """A walk over the manifests of an archive: each is read once for an image, and there is an end to it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = MOST_MANIFESTS

    def collect(self, image: Image, descriptor: dict[str, Any]) -> None:
        """Add a manifest or index and all below it. Of an index, platforms may be left out, but not all."""
        self._visit(image, descriptor, DEEPEST, {})

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
        content = _small(self._source, _place(digest))
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
            image.blobs.update({part["digest"]: _blob(self._source, image, part) for part in _parts(document)})
        else:
            raise ImageError(f"{image.name} is a {kind}, which is no image")
        return content


def _parts(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [manifest["config"], *manifest["layers"]]


def _blob(source: Source, image: Image, descriptor: dict[str, Any]) -> Blob:
    digest, size = descriptor["digest"], descriptor["size"]
    if source.size(_place(digest)) != size:
        raise ImageError(f"{digest} of {image.name} is damaged", hint="Make or copy the archive again.")
    return Blob(digest=digest, size=size, open=partial(source.open, _place(digest)))


def _docker_images(source: Source, called: str, name: str | None) -> list[Image]:
    """docker-archive: layers are plain tars, whose digests are in the configuration. We write the manifest."""
    images = []
    for entry in json.loads(_small(source, "manifest.json")):
        config = _small(source, entry["Config"])
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
    """A layer's media type and content. What is compressed has another digest than the configuration says."""
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
    while piece := file.read(PIECE):
        state.update(piece)
    return f"sha256:{state.hexdigest()}"


def _small(source: Source, name: str) -> bytes:
    if source.size(name) > LARGEST_MANIFEST:
        raise ValueError(f"{name} is too large")
    with source.open(name) as file:
        return file.read(LARGEST_MANIFEST)


def _place(digest: str) -> str:
    return f"blobs/{checked_digest(digest).replace(':', '/')}"
