"""Our own C programs in the images, compiled statically so that they run on any base, or on none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.images.commands import CommandError, run
from testbed.images.entries import Entry, Kind

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Program", "compile_program", "toolchain"]

NEEDED = ("gcc", "libc6-dev", "musl-tools")
# No names of temporary files, and no build id that would differ with them.
REPRODUCIBLE = ("-static", "-s", "-Wall", "-Wextra", "-Werror", "-Wl,--build-id=none")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program of one C file. ``compiler`` is ``musl-gcc`` for one with that library in it instead of glibc."""

    path: str
    source: str
    flags: tuple[str, ...]
    compiler: str = "gcc"


def toolchain() -> list[str]:
    """Return what decides about the bytes of a compiled program, as ``name=version``.

    The compiler is installed from Debian if it is missing: a test machine is ours to complete.
    """
    try:
        return versions()
    except CommandError:
        run(
            ["apt-get", "--yes", "--quiet=2", "--no-install-recommends", "install", *NEEDED],
            seconds=900,
            hint=f"Install {', '.join(NEEDED)} as root.",
        )
        return versions()


def versions() -> list[str]:
    names = ["binutils", "libc6-dev", "musl-dev", "musl-tools"]
    packages = run(["dpkg-query", "--show", "--showformat=${Package}=${Version}\n", *names]).split()
    return [f"gcc={run(['gcc', '--version']).splitlines()[0]}", *packages]


def compile_program(program: Program, *, work: Path) -> Entry:
    """Return the compiled program as an entry; the compiler sees relative names only."""
    (work / "program.c").write_text(program.source)
    run([program.compiler, *program.flags, *REPRODUCIBLE, "-o", "program", "program.c"], cwd=work)
    return Entry(path=program.path, kind=Kind.FILE, mode=0o755, content=(work / "program").read_bytes())
