"""The root directories of other releases of Debian than the machine's: made once by debootstrap, kept in the cache.

A root is made in a directory beside its place, in namespaces of its own, and renamed when it is whole. So one that was
interrupted is never used, leaves no process and no mount, and several beds that start at once make it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import packages
from testbed.errors import PackageError
from testbed.generations import OF_MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.generations import Generation

__all__ = ["base_command", "ensure", "mirror_of", "packages_command", "root_of"]

SCRIPTS = "/usr/share/debootstrap/scripts"
# In namespaces whose end is that of all that was started and mounted in them, and which end with this process.
ALONE = ("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
SOURCES = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"]
LIMIT = 900.0  # seconds for each command; a minute each on an idle machine
LINES = 8  # of debootstrap's output, that an error shows


def root_of(generation: Generation, cache: Path) -> Path:
    """Where the root of a generation is; its name changes with the packages that are wanted."""
    if generation.of_machine:
        return Path("/")
    key = hashlib.sha256(" ".join(packages.PACKAGES).encode()).hexdigest()[:8]
    return cache / f"root-{generation.release}-{key}"


def mirror_of(targets: str) -> str:
    """The mirror that the machine itself has its packages from, by what apt says of its sources (``SOURCES``)."""
    for line in targets.splitlines():
        uri, _, release = line.partition(" ")
        if release and "-" not in release:  # not the one of updates, or of security
            return uri.rstrip("/")
    raise PackageError("apt has no mirror of Debian.", hint="See /etc/apt/sources.list, and run apt-get update.")


def base_command(generation: Generation, target: Path, mirror: str) -> list[str]:
    """What makes the smallest root of a release."""
    script = f"{SCRIPTS}/{generation.script}"
    return [*ALONE, "debootstrap", "--variant=minbase", generation.release, str(target), mirror, script]


def packages_command(target: Path) -> list[str]:
    """What installs the packages in it: apt knows better than debootstrap which others they need."""
    return [*ALONE, f"--root={target}", *packages.install_command(packages.PACKAGES)]


def ensure(generation: Generation, cache: Path) -> dict[str, str]:
    """Make the root if it is not there. Returns the versions of its packages."""
    if generation.of_machine:
        return packages.ensure(packages.PACKAGES)
    root = root_of(generation, cache)
    if not root.exists():
        with locked(cache / f"root-{generation.release}.lock"):
            if not root.exists():  # another bed may have made it while we waited
                packages.ensure(("debootstrap",))
                make(generation, root)
    packages.ensure(packages.OF_MACHINE)
    return packages.versions(packages.PACKAGES, root)


def make(generation: Generation, root: Path) -> None:
    new = root.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        build(generation, new)
        new.rename(root)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def build(generation: Generation, new: Path) -> None:
    mirror = mirror_of(packages.run(SOURCES, limit=LIMIT).stdout)
    for command in (base_command(generation, new, mirror), packages_command(new)):
        result = packages.run(command, limit=LIMIT)
        if result.returncode:
            said = "\n".join(result.stdout.splitlines()[-LINES:])
            raise PackageError(
                f"A root of Debian {generation.release} cannot be made: {' '.join(command)}\n{said}",
                hint=f"It needs {mirror} and 1 GB in {new.parent}. Or take the machine's own: --slurm {OF_MACHINE}",
            )
        packages.deny_daemons(new)
    shutil.rmtree(new / "var/cache/apt/archives", ignore_errors=True)
    if lacks := packages.missing(packages.PACKAGES, packages.versions(packages.PACKAGES, new)):
        raise PackageError(f"apt-get says that all is well, but {generation.release} lacks {' '.join(lacks)}.")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # its holder has a time limit
        yield
