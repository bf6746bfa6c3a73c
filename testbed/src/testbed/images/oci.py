"""An OCI image layout in one tar file, as ``ctr images import``, ``podman load`` and ``skopeo`` read it.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Command", "Image", "Layer", "make_image", "write_layer", "write_layout"]

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# Images are unpacked far more often over a local disk than sent over a network: speed counts more than size.
LEVEL = 1
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a container of the image runs; the fields are those of the image specification."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    stop_signal: str = "SIGTERM"
    user: str = ""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A compressed layer on disk: ``digest`` is of these bytes, ``diff_id`` of the tar in them."""

    path: Path
    digest: str
    size: int
    diff_id: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image's documents as they will be written; ``digest`` is the manifest's, by which the image is known."""

    config: bytes
    manifest: bytes
    index: bytes
    digest: str
    layers: tuple[Layer, ...]


class Writable(Protocol):
    """What a measure writes to."""

    def write(self, data: bytes, /) -> object: ...


class Measure(io.RawIOBase):
    """Passes bytes on, and knows their number and digest."""

    def __init__(self, out: Writable) -> None:
        super().__init__()
        self._out = out
        self._sha256 = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._sha256.update(data)
        self.size += len(data)
        self._out.write(data)
        return len(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha256.hexdigest()}"


def write_layer(path: Path, write_tar: Callable[[IO[bytes]], None]) -> Layer:
    """Compress what ``write_tar`` writes, without a name or a time in the header, and measure both sides."""
    with path.open("wb") as file:
        compressed = Measure(file)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=compressed, mtime=0) as packed:
            plain = Measure(packed)
            write_tar(plain)  # type: ignore[arg-type]
    return Layer(path=path, digest=compressed.digest, size=compressed.size, diff_id=plain.digest)


def make_image(*, reference: str, architecture: str, command: Command, layers: Sequence[Layer]) -> Image:
    """Return an image's configuration, manifest and index."""
    config = canonical(
        {
            "architecture": architecture,
            "os": "linux",
            "created": EPOCH,
            "config": runtime_config(command),
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": EPOCH, "created_by": "testbed image build"} for _ in layers],
        }
    )
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, config),
            "layers": [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers],
        }
    )
    entry = descriptor(MANIFEST, manifest) | {
        "platform": {"architecture": architecture, "os": "linux"},
        # containerd reads the first, the tools of the specification the second.
        "annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference},
    }
    index = canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    return Image(config=config, manifest=manifest, index=index, digest=digest(manifest), layers=tuple(layers))


def runtime_config(command: Command) -> dict[str, Any]:
    """Return the part of the configuration that says how to run; empty fields are left out, as Docker does."""
    fields: dict[str, Any] = {
        "Entrypoint": list(command.entrypoint),
        "Cmd": list(command.cmd),
        "Env": [f"PATH={PATH}", *command.env],
        "ExposedPorts": {port: {} for port in command.ports},
        "StopSignal": command.stop_signal,
        "User": command.user,
    }
    return {name: value for name, value in fields.items() if value}


def write_layout(image: Image, out: IO[bytes]) -> None:
    """Write the layout; the index comes first, so that a reader knows early what it reads."""
    blobs: dict[str, bytes | Path] = {digest(data): data for data in (image.config, image.manifest)}
    blobs |= {layer.digest: layer.path for layer in image.layers}
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        add_member(tar, "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
        add_member(tar, "index.json", image.index)
        for name, data in sorted(blobs.items()):
            add_member(tar, f"blobs/{name.replace(':', '/')}", data)


def add_member(tar: tarfile.TarFile, name: str, data: bytes | Path) -> None:
    """Add a file with nothing but its name and its bytes."""
    member = tarfile.TarInfo(name)
    if isinstance(data, bytes):
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
        return
    member.size = data.stat().st_size
    with data.open("rb") as stream:
        tar.addfile(member, stream)


def descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    """Return how one document of the layout refers to another."""
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def canonical(document: Mapping[str, Any]) -> bytes:
    """Return JSON that depends on the content alone."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
