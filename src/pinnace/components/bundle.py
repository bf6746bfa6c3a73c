"""Bundles: one file with all components, for a site whose machines have no internet.

A bundle is a tar archive: first ``bundle.json`` with a record for each component, then the binaries. Installing one
verifies every byte against those records, and the records against this pinnace's own manifest, so that a bundle of
another version is refused.

A bundle is not trusted by itself. Where ``locks/*/SHA256SUMS`` pins a binary, the bundle has to have that one. For all
others the user has to give the SHA-256 of the bundle, which `pinnace fetch --bundle` has shown to its maker.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.components.store import ComponentState, Origin, Record, explain_no_space, sha256_of
from pinnace.errors import ChecksumError, ComponentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from pinnace.components.manifest import Component
    from pinnace.components.store import Entry

INDEX = "bundle.json"
MAX_INDEX_SIZE = 1 << 20  # bytes; it usually has about ten thousand
DAMAGE_ERRORS = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
MODES: dict[str, Literal["w", "w:gz", "w:xz"]] = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz"}


def write_bundle(entries: Iterable[Entry], file: Path, progress: Callable[[str], None]) -> None:
    """Write the installed components to ``file``, atomically."""
    mode = next((mode for suffix, mode in MODES.items() if file.name.endswith(suffix)), None)
    if mode is None:
        raise UsageError(f"cannot tell the format of {file.name}", hint=f"Name it *{', *'.join(MODES)}.")
    if not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent}")
    records = [
        (entry.path, entry.record) for entry in entries if entry.record and entry.state is ComponentState.INSTALLED
    ]
    with explain_no_space(file.parent, "the bundle"):
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
        os.close(descriptor)
        unfinished = Path(name)
        try:
            with tarfile.open(unfinished, mode) as tar:
                index = json.dumps([asdict(record) for _, record in records], indent=2).encode()
                tar.addfile(_member(INDEX, len(index), 0o644), io.BytesIO(index))
                for path, record in records:
                    progress(f"{record.component} {record.version}")
                    for binary in record.files:
                        with (path / binary).open("rb") as source:
                            tar.addfile(_member(member_name(record, binary), record.files[binary].size), source)
            unfinished.chmod(0o644)
            unfinished.rename(file)
        finally:
            unfinished.unlink(missing_ok=True)


def member_name(record: Record, binary: str) -> str:
    return f"{record.component}/{record.version}/{record.arch}/{binary}"


def _member(name: str, size: int, mode: int = 0o755) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = mode
    return member


class Bundle:
    """An opened bundle. ``unpack`` extracts the members of one component.

    ``sha256`` is the file's checksum as the user gives it.
    """

    def __init__(self, file: Path, sha256: str = "") -> None:
        self.file = file
        self.vouched = bool(sha256)
        if sha256 and (found := sha256_of(file)) != sha256.strip().lower():
            raise ChecksumError(
                f"{file} is not the bundle that you mean: its sha256 is {found}", hint="Get it again from who made it."
            )
        try:
            with tarfile.open(file) as tar:
                first = tar.next()
                content = tar.extractfile(first) if first and first.name == INDEX and first.isreg() else None
                if content is None or (first and first.size > MAX_INDEX_SIZE):
                    raise ComponentError(f"{file} is not a bundle of pinnace")
                self.records = [Record.load(json.dumps(entry)) for entry in json.load(content)]
        except (*DAMAGE_ERRORS, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ComponentError(f"{file} is not a bundle of pinnace: {error}") from error

    def record(self, component: Component, arch: str) -> Record:
        """The record of a component; ComponentError if the bundle does not have the one that this pinnace needs."""
        for record in self.records:
            if (record.component, record.arch, record.fingerprint) == (component.name, arch, component.fingerprint):
                return record
        held = ", ".join(f"{r.component} {r.version} ({r.arch})" for r in self.records)
        raise ComponentError(
            f"{self.file.name} does not hold {component.label} ({arch}) as this pinnace needs it",
            hint=f"It holds {held or 'nothing'}. Make a new one with the same version of pinnace.",
        )

    def check(self, components: Iterable[Component], arch: str) -> None:
        """Raise unless the components are trusted: by a pin of this pinnace, or by the user's checksum."""
        unpinned = []
        for component in components:
            record = self.record(component, arch)
            for binary in component.binaries:
                self._check_pin(component, record, binary)
                if not component.is_pinned(arch, binary, record.files[binary].sha256):
                    unpinned.append(binary)
        if unpinned and not self.vouched:
            raise ComponentError(
                f"nobody but the bundle itself vouches for {', '.join(unpinned)} in {self.file.name}: "
                "this pinnace has no checksums of them",
                hint="If you trust who made it, ask for its checksum, which `pinnace fetch --bundle` has shown, and "
                f"give it: `pinnace fetch --from {self.file.name} --sha256 …`.",
            )

    def _check_pin(self, component: Component, record: Record, binary: str) -> None:
        """Raise if a binary has another checksum than the pinned one of its origin."""
        if binary not in record.files:
            raise ComponentError(f"{self.file.name} does not hold {binary}", hint="Make a new one.")
        of_build = component.pin(f"build/{record.detail}/{record.arch}/{binary}")
        pinned = of_build if record.origin is Origin.BUILD else component.pin(f"release/{record.arch}/{binary}")
        if pinned and pinned != record.files[binary].sha256:
            raise ChecksumError(
                f"{binary} in {self.file.name} has sha256 {record.files[binary].sha256}, but {component.label} "
                f"({record.origin}: {record.detail}) has {pinned}",
                hint="It is not upstream's. Do not use this bundle; tell who made it.",
            )

    def unpack(self, component: Component, arch: str, target: Path) -> str:
        """Extract a component's binaries into ``target`` and verify them. Returns their origin."""
        self.check([component], arch)
        record = self.record(component, arch)
        wanted = {member_name(record, binary): binary for binary in component.binaries}
        try:
            with tarfile.open(self.file) as tar:
                for member in tar:
                    binary = wanted.get(member.name)
                    fits = binary and member.isreg() and member.size == record.files[binary].size
                    source = tar.extractfile(member) if fits else None
                    if source is not None and binary:
                        with source, (target / binary).open("wb") as file:
                            shutil.copyfileobj(source, file)
        except DAMAGE_ERRORS as error:
            raise ComponentError(f"{self.file} is damaged: {error}", hint="Copy it again.") from error
        for binary in component.binaries:
            if not (target / binary).exists() or sha256_of(target / binary) != record.files[binary].sha256:
                raise ChecksumError(f"{self.file} is damaged: {binary} is not what it says", hint="Copy it again.")
        return f"{self.file.name} ({record.origin}: {record.detail})"
