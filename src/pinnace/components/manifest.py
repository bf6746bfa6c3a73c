"""The pinned manifest, ``components.toml``, as data."""

from __future__ import annotations

import functools
import hashlib
import platform
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinnace.errors import UsageError

HERE = Path(__file__).parent
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True)
class Release:
    """Where upstream publishes the binaries: as files at ``url``, inside the container ``image``, or nowhere."""

    url: str = ""
    checksums: str = ""
    image: str = ""

    @property
    def exists(self) -> bool:
        return bool(self.url or self.image)


@dataclass(frozen=True, kw_only=True)
class Build:
    """How the binaries are built from Go modules."""

    packages: dict[str, str]
    gib: int
    stamps: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def needs_c(self) -> bool:
        """Whether a C compiler is used; the bytes then depend on its version."""
        return bool(self.libraries) or any(package.endswith(".c") for package in self.packages.values())


@dataclass(frozen=True, kw_only=True)
class Component:
    """One upstream project and the binaries that we take from it. No cluster needs those of an optional one."""

    name: str
    version: str
    release: Release
    build: Build
    lock: Path
    optional: bool = False

    @property
    def binaries(self) -> tuple[str, ...]:
        return tuple(self.build.packages)

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    def expand(self, text: str, **more: str) -> str:
        """Fill the placeholders that texts of the manifest may contain."""
        major, minor, _ = self.version.split(".", 2)
        return text.format(version=self.version, major=major, minor=minor, **more)

    def pin(self, name: str) -> str | None:
        """The SHA-256 in SHA256SUMS of, for example, ``build/go1.26.8/amd64/kubelet``; None if it is not pinned."""
        return _sums(self.lock / "SHA256SUMS").get(name)

    def is_pinned(self, arch: str, binary: str, sha256: str) -> bool:
        """Whether SHA256SUMS has this checksum for a binary, whichever toolchain or release it is from."""
        sums = _sums(self.lock / "SHA256SUMS")
        return any(
            digest == sha256 and name.split("/")[0] in {"build", "release"} and name.endswith(f"/{arch}/{binary}")
            for name, digest in sums.items()
        )

    @property
    def fingerprint(self) -> str:
        """A digest of the build recipe, so that a store never gives binaries of another recipe."""
        digest = hashlib.sha256(repr((self.version, self.build)).encode())
        for name in ("go.mod", "go.sum"):
            digest.update((self.lock / name).read_bytes())
        return digest.hexdigest()[:16]


@functools.cache
def _sums(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    lines = (line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip())
    return {name.strip(): digest for digest, name in lines}


def parse(document: dict[str, Any], *, locks: Path) -> dict[str, Component]:
    """Turn the parsed TOML into components, in the order of the file."""
    components = {}
    for name, entry in document.items():
        build = entry["build"]
        components[name] = Component(
            name=name,
            version=entry["version"],
            release=Release(**entry.get("release", {})),
            build=Build(
                packages=build["packages"],
                gib=build["gib"],
                stamps=build.get("stamps", {}),
                tags=tuple(build.get("tags", ())),
                libraries=tuple(build.get("libraries", ())),
            ),
            lock=locks / name,
            optional=entry.get("optional", False),
        )
    return components


@functools.cache
def manifest() -> dict[str, Component]:
    """All components of this version of pinnace, also optional ones."""
    return parse(tomllib.loads((HERE / "components.toml").read_text()), locks=HERE / "locks")


def required() -> list[Component]:
    """The components that every cluster needs."""
    return [component for component in manifest().values() if not component.optional]


def select(names: tuple[str, ...]) -> list[Component]:
    """The components with these names; the name of a binary selects its component. Without names, the required ones."""
    components = manifest()
    by_name = {binary: component for component in components.values() for binary in component.binaries}
    by_name |= components
    for name in names:
        if name not in by_name:
            known = "\n".join(f"  {c.name}: {', '.join(c.binaries)}" for c in components.values())
            raise UsageError(f"there is no component called {name!r}", hint=f"Choose from:\n{known}")
    chosen = {by_name[name].name for name in names}
    return [component for component in components.values() if component.name in chosen] if names else required()


def architecture(machine: str | None = None) -> str:
    """This machine's architecture, as Go names it."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise UsageError(
            f"pinnace has no components for the architecture {machine}",
            hint=f"It runs on {' and '.join(ARCHITECTURES)}.",
        )
    return ARCHITECTURES[machine]
