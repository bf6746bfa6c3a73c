"""Debian packages: which ones a layer needs, and their files.

apt's own resolver answers on the machine's configured sources, but against a status file of ours: to apt, only the
packages of the lower layers are installed, whatever this machine has. Packages that a recipe excludes stand in that
file too, so that apt takes them for present and does not bring what only they need.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import PackageError
from testbed.images.commands import CommandError, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Package", "download", "resolve", "update"]

STALE = "The package lists may be old or missing: `apt-get update`, or build with --refresh."


@dataclass(frozen=True, kw_only=True)
class Package:
    """What apt knows of one version of a package, as far as an image needs it."""

    name: str
    version: str
    architecture: str
    sha256: str
    provides: str = ""
    multi_arch: str = "no"

    @property
    def file(self) -> str:
        """The name under which ``apt-get download`` stores it: a colon would be special in URLs."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


def resolve(wanted: Sequence[str], *, present: Sequence[Package], absent: Sequence[str], cache: Path) -> list[Package]:
    """Return the packages, sorted by name, that ``wanted`` adds to those present, without what hangs on the absent."""
    pretended = [*present, *show(absent, cache=cache)]
    held = {package.name for package in pretended}
    asked = [name for name in wanted if name not in held]
    if not asked:
        return []
    status = cache / "status"
    status.write_text(status_file(pretended))
    options = apt_options(cache, status=status)
    uris = run(["apt-get", *options, "--print-uris", "--yes", "--quiet=2", "install", *asked], hint=STALE)
    return show([name for name in uri_names(uris) if name not in held], cache=cache)


def show(names: Iterable[str], *, cache: Path) -> list[Package]:
    """Return the versions that apt would install, sorted by name; raise if a name is unknown."""
    names = sorted(set(names))
    if not names:
        return []
    argv = ["apt-cache", *apt_options(cache), "--no-all-versions", "show", *names]
    try:
        found = parse_packages(run(argv))
    except CommandError:  # apt-cache fails only if it knows none of the names
        found = []
    if unknown := sorted(set(names) - {package.name for package in found}):
        raise PackageError(f"apt knows no package {', '.join(unknown)}", hint=STALE)
    return sorted(found, key=lambda package: package.name)


def download(packages: Sequence[Package], *, cache: Path, into: Path) -> None:
    """Fetch the packages' files that are not there yet; all are checked against the signed lists."""
    into.mkdir(parents=True, exist_ok=True)
    missing = [package for package in packages if not intact(into / package.file, package.sha256)]
    for package in missing:
        (into / package.file).unlink(missing_ok=True)  # a download that was cut off
    if missing:
        exact = [f"{package.name}={package.version}" for package in missing]
        run(["apt-get", *apt_options(cache), "--quiet=2", "download", *exact], cwd=into, seconds=1800, hint=STALE)
    for package in missing:
        if not intact(into / package.file, package.sha256):
            raise PackageError(f"{into / package.file} is not the file that the package lists name", hint=STALE)


def update() -> None:
    """Renew the machine's package lists."""
    run(["apt-get", "--quiet=2", "update"], hint="The machine's own apt sources must answer: /etc/apt/sources.list*")


def apt_options(cache: Path, *, status: Path = Path("/dev/null")) -> list[str]:
    """Return what makes apt independent of this machine's packages, and leaves the machine's own caches alone."""
    settings = {
        "Dir::State::status": str(status),
        "Dir::Cache": str(cache),
        # Indexing the lists takes a second; the result does not depend on the status file, so it is kept.
        "Dir::Cache::srcpkgcache": "srcpkgcache.bin",
        "Dir::Cache::pkgcache": "",
        "APT::Install-Recommends": "false",
        # Nothing that apt locks is written here, and the directory of packages has a lock of ours.
        "Debug::NoLocking": "true",
        # apt's own user may not reach the cache, and apt would say so each time.
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def status_file(packages: Iterable[Package]) -> str:
    """Return a dpkg status file in which these are installed; without Depends, since some of those are excluded."""
    return "".join(
        f"Package: {package.name}\n"
        "Status: install ok installed\n"
        f"Version: {package.version}\n"
        f"Architecture: {package.architecture}\n"
        f"Multi-Arch: {package.multi_arch}\n"
        + (f"Provides: {package.provides}\n" if package.provides else "")
        + "Maintainer: nobody\nDescription: none\n\n"
        for package in packages
    )


def uri_names(text: str) -> list[str]:
    """Return the package names in apt's lines of the form ``'URI' name_version_arch.deb size hash``."""
    return [line.split()[1].partition("_")[0] for line in text.splitlines() if line.startswith("'")]


def parse_packages(text: str) -> list[Package]:
    """Return the packages of ``apt-cache show``: stanzas of fields, where a continued line starts with a space."""
    return [parse_package(stanza) for stanza in text.split("\n\n") if stanza.strip()]


def parse_package(stanza: str) -> Package:
    lines = [line.partition(": ") for line in stanza.splitlines() if not line.startswith(" ")]
    fields = {name: value.strip() for name, _, value in lines}
    return Package(
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields["Architecture"],
        sha256=fields["SHA256"],
        provides=fields.get("Provides", ""),
        multi_arch=fields.get("Multi-Arch", "no"),
    )


def intact(path: Path, sha256: str) -> bool:
    """Say whether a file is there with these very bytes."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False
