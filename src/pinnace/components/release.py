"""Binaries from upstream's own releases, verified."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.components.download import MAX_FILE_SIZE, download, read_small
from pinnace.errors import ChecksumError, ComponentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinnace.components.events import Reporter
    from pinnace.components.manifest import Component

ARCHIVES = (".tar.gz", ".tgz")
INDEX = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


def urls(component: Component, arch: str) -> dict[str, tuple[str, ...]]:
    """The URLs of a release's files, and the binaries in each."""
    url = component.release.url
    if "{binary}" in url:
        return {component.expand(url, arch=arch, binary=name): (name,) for name in component.binaries}
    return {component.expand(url, arch=arch): component.binaries}


def first_url(component: Component, arch: str) -> str:
    """A URL of the release, to test whether its server can be reached."""
    if component.release.image:
        return f"https://{component.release.image.split('/')[0]}/v2/"
    return next(iter(urls(component, arch)))


def fetch_release(component: Component, arch: str, target: Path, reporter: Reporter) -> str:
    """Download the binaries of a release into ``target``. Returns their URL, for the record."""
    if component.release.image:
        return _from_image(component, arch, target, reporter)
    for url, binaries in urls(component, arch).items():
        name = url.rsplit("/", 1)[1]
        reporter.step(component.label, f"downloading {name}")
        sha256 = expected_sha256(component, arch, url)
        with tempfile.TemporaryDirectory(dir=target) as scratch:
            file = Path(scratch) / name
            download(url, file, sha256=sha256, progress=_progress(component, name, reporter))
            if name.endswith(ARCHIVES):
                take_from_archive(file, binaries, target)
            else:
                file.rename(target / binaries[0])
    return first_url(component, arch)


def expected_sha256(component: Component, arch: str, url: str) -> str:
    """The pinned checksum of a release file; without one, the checksum that upstream publishes beside it."""
    name = url.rsplit("/", 1)[1]
    if pinned := component.pin(f"release/{arch}/{name}"):
        return pinned
    return parse_checksums(read_small(checksums_url(component, arch, url)).decode(), name)


def checksums_url(component: Component, arch: str, url: str) -> str:
    return component.expand(component.release.checksums, url=url, arch=arch)


def parse_checksums(text: str, name: str) -> str:
    """Find a file's SHA-256 in a published checksum file: a bare digest, or lines of ``digest  name``."""
    for line in text.splitlines():
        match = re.fullmatch(r"([0-9a-fA-F]{64})(?:\s+\*?(\S+))?\s*", line)
        if match and (match[2] is None or match[2].rsplit("/", 1)[-1] == name):
            return match[1].lower()
    raise ChecksumError(f"upstream publishes no SHA-256 of {name} where it is expected")


def take_from_archive(archive: Path, binaries: tuple[str, ...], target: Path, among: tuple[str, ...] = ()) -> None:
    """Extract these binaries, from any directory of a tar archive, to ``target``, and nothing else.

    Those of ``among`` are optional.
    """
    try:
        with tarfile.open(archive) as tar:
            _take(tar, (*binaries, *among), target)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ComponentError(f"{archive.name} is not a readable archive: {error}") from error
    missing = [name for name in binaries if not (target / name).exists()]
    if missing:
        raise ComponentError(f"{archive.name} does not hold {', '.join(missing)}")


def _take(tar: tarfile.TarFile, binaries: tuple[str, ...], target: Path) -> None:
    for member in tar:
        name = member.name.rsplit("/", 1)[-1]
        source = tar.extractfile(member) if member.isreg() and name in binaries else None
        if member.size > MAX_FILE_SIZE:
            raise ComponentError(f"{name} in the release has {member.size} bytes, which is too much for a program")
        if source is not None:
            with source, (target / name).open("wb") as file:
                shutil.copyfileobj(source, file)


def _from_image(component: Component, arch: str, target: Path, reporter: Reporter) -> str:
    """Extract the binaries from the layers of a container image. Everything is verified by its digest."""
    image = component.expand(component.release.image)
    name, tag = image.rsplit(":", 1)
    host, repository = name.split("/", 1)
    base = f"https://{host}/v2/{repository}"
    reporter.step(component.label, f"downloading {image}")
    reference = f"sha256:{pinned}" if (pinned := component.pin(f"release/image/{tag}")) else tag
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        for layer in _layers(base, reference, arch, Path(scratch)):
            digest = layer.removeprefix("sha256:")
            blob = Path(scratch) / f"{digest}.tar.gz"
            download(f"{base}/blobs/{layer}", blob, sha256=digest, progress=_progress(component, "a layer", reporter))
            take_from_archive(blob, (), target, among=component.binaries)
    return image


def _layers(base: str, reference: str, arch: str, scratch: Path) -> Iterator[str]:
    """The digests of an image's layers for one architecture."""

    def document(reference: str, accept: str) -> dict[str, list[dict[str, object]]]:
        url = f"{base}/manifests/{reference}"
        if not reference.startswith("sha256:"):
            return json.loads(read_small(url, {"Accept": accept}))  # type: ignore[no-any-return]
        file = scratch / "manifest.json"
        download(url, file, sha256=reference.removeprefix("sha256:"), headers={"Accept": accept})
        return json.loads(file.read_text())  # type: ignore[no-any-return]

    index = document(reference, INDEX)
    wanted = {"os": "linux", "architecture": arch}
    for entry in index["manifests"]:
        platform = entry.get("platform")
        if isinstance(platform, dict) and wanted.items() <= platform.items():
            manifest = document(str(entry["digest"]), MANIFEST)
            yield from (str(layer["digest"]) for layer in manifest["layers"])
            return
    raise ComponentError(f"{base} has no image for linux/{arch}")


def _progress(component: Component, name: str, reporter: Reporter) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        of = f" of {total >> 20}" if total else ""
        reporter.progress(component.label, f"downloading {name}: {done >> 20}{of} MiB")

    return progress
