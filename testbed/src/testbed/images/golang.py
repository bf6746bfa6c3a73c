"""Go programs in the images: upstream's own, built from the Go module proxy, files of their modules, and our own.

A lock in ``locks/`` is a Go module of nothing but a ``go.mod`` and a ``go.sum``: they pin every source file, and the
build may not change them. With ``-trimpath`` and without C, the same Go gives the same bytes.
"""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from testbed.images.commands import run
from testbed.images.entries import Entry, Kind

__all__ = ["GoFile", "GoProgram", "GoSource", "Lock", "add_from_modules", "go_version", "read_lock"]

LOCKS = Path(__file__).parent / "locks"
SECONDS = 1800  # agnhost from nothing takes some minutes on two cores
HINT = "Images with Go programs in them need Go, and the module proxy or a filled module cache."
SETTINGS = {
    "GO111MODULE": "on",
    "GOFLAGS": "",
    "GOWORK": "off",
    "GOOS": "linux",
    "GOAMD64": "v1",
    "GOARM64": "v8.0",
    "CGO_ENABLED": "0",
}


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A Go module that pins others. The texts, not their place, are part of what an image is known by."""

    go_mod: str
    go_sum: str


@dataclass(frozen=True, kw_only=True)
class GoProgram:
    """A program, by the package that it is built from."""

    path: str
    package: str
    lock: Lock
    mode: int = 0o755


@dataclass(frozen=True, kw_only=True)
class GoFile:
    """A file as it lies in a module."""

    path: str
    module: str
    source: str
    lock: Lock


@dataclass(frozen=True, kw_only=True)
class GoSource:
    """A program of one Go file, which needs nothing but the standard library of that version."""

    path: str
    source: str
    version: str
    mode: int = 0o755


def read_lock(name: str) -> Lock:
    """Return a lock of ``locks/``."""
    return Lock(go_mod=(LOCKS / name / "go.mod").read_text(), go_sum=(LOCKS / name / "go.sum").read_text())


def go_version() -> str:
    """Return what decides about the bytes of a program beside its lock, as ``name=version``."""
    return f"go={run(['go', 'env', 'GOVERSION'], environment=SETTINGS, hint=HINT).strip()}"


def build_argv(package: str, output: str) -> list[str]:
    """Return the command that builds a program. It leaves the machine to the tests that may run beside it."""
    flags = ["-p", "2", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
    return ["nice", "-n", "10", "go", "build", *flags, "-o", output, package]


@functools.cache
def add_from_modules(wanted: GoProgram | GoFile | GoSource) -> Entry:
    """Return a program or a file as an entry. It is remembered: several images are one program with little changed."""
    with tempfile.TemporaryDirectory(prefix="module-") as work:
        return take(wanted, work=Path(work))


def take(wanted: GoProgram | GoFile | GoSource, *, work: Path) -> Entry:
    """Do that in an empty directory."""
    if isinstance(wanted, GoSource):
        (work / "go.mod").write_text(f"module program\n\ngo {wanted.version}\n")
        (work / "main.go").write_text(wanted.source)
        return build_program(".", path=wanted.path, mode=wanted.mode, work=work)
    (work / "go.mod").write_text(wanted.lock.go_mod)
    (work / "go.sum").write_text(wanted.lock.go_sum)
    if isinstance(wanted, GoProgram):
        return build_program(wanted.package, path=wanted.path, mode=wanted.mode, work=work)
    argv = ["go", "mod", "download", "-json", wanted.module]
    found = json.loads(run(argv, cwd=work, environment=SETTINGS, seconds=SECONDS, hint=HINT))["Dir"]
    return Entry(path=wanted.path, kind=Kind.FILE, mode=0o644, content=(Path(found) / wanted.source).read_bytes())


def build_program(package: str, *, path: str, mode: int, work: Path) -> Entry:
    run(build_argv(package, "program"), cwd=work, environment=SETTINGS, seconds=SECONDS, hint=HINT)
    return Entry(path=path, kind=Kind.FILE, mode=mode, content=(work / "program").read_bytes())
