"""One file that holds all components, for a site whose machines have no internet.

A bundle is a tar archive: first ``bundle.json`` with a record for each component, then the binaries. Installing one
verifies every byte against those records, and the records against this pinnace's own manifest, so that a bundle of
another version is refused instead of half fitting.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.components.store import Record, State, explain_no_space, sha256_of
from pinnace.errors import ChecksumError, ComponentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from pinnace.components.manifest import Component
    from pinnace.components.store import Entry

INDEX = "bundle.json"
MODES: dict[str, Literal["w", "w:gz", "w:xz"]] = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz"}


def write_bundle(entries: Iterable[Entry], file: Path, progress: Callable[[str], None]) -> None:
    """Write the installed components to ``file``, which appears only when it is complete."""
    mode = next((mode for suffix, mode in MODES.items() if file.name.endswith(suffix)), None)
    if mode is None:
        raise UsageError(f"cannot tell the format of {file.name}", hint=f"Name it *{', *'.join(MODES)}.")
    if not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent}")
    records = [(entry.path, entry.record) for entry in entries if entry.record and entry.state is State.INSTALLED]
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
    """An opened bundle, unpacked member by member into a scratch directory as components ask for them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            with tarfile.open(file) as tar:
                first = tar.next()
                content = tar.extractfile(first) if first and first.name == INDEX else None
                if content is None:
                    raise ComponentError(f"{file} is not a bundle of pinnace")
                self.records = [Record.load(json.dumps(entry)) for entry in json.load(content)]
        except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ComponentError(f"{file} is not a bundle of pinnace: {error}") from error

    def record(self, component: Component, arch: str) -> Record:
        """The record for a component, if the bundle has the one that this pinnace wants."""
        for record in self.records:
            if (record.component, record.arch, record.fingerprint) == (component.name, arch, component.fingerprint):
                return record
        held = ", ".join(f"{r.component} {r.version} ({r.arch})" for r in self.records)
        raise ComponentError(
            f"{self.file.name} does not hold {component.label} ({arch}) as this pinnace needs it",
            hint=f"It holds {held or 'nothing'}. Make a new one with the same version of pinnace.",
        )

    def unpack(self, component: Component, arch: str, target: Path) -> str:
        """Put a component's binaries into ``target`` and verify them. Says where they came from."""
        record = self.record(component, arch)
        wanted = {member_name(record, binary): binary for binary in component.binaries}
        try:
            with tarfile.open(self.file) as tar:
                for member in tar:
                    binary = wanted.get(member.name)
                    source = tar.extractfile(member) if binary and member.isreg() else None
                    if source is not None and binary:
                        with source, (target / binary).open("wb") as file:
                            shutil.copyfileobj(source, file)
        except (tarfile.TarError, EOFError) as error:
            raise ComponentError(f"{self.file} is damaged: {error}", hint="Copy it again.") from error
        for binary in component.binaries:
            if not (target / binary).exists() or sha256_of(target / binary) != record.files[binary].sha256:
                raise ChecksumError(f"{self.file} is damaged: {binary} is not what it says", hint="Copy it again.")
        return f"{self.file.name} ({record.origin}: {record.detail})"
