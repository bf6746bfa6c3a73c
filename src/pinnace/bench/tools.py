"""The programs that measure: in an image, and copied out of it for bare hosts, so that both sides run the same ones.

A pod copies them with the libraries that they need. On a host, the image's own loader starts them with these libraries,
whatever the host has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.bench.measurements import PROGRAMS
from pinnace.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pinnace.bench.measurements import Task

IMAGE = "localhost/pinnace/bench:1"
HOW_TO_GET = (
    "`make bench-image` in the sources of pinnace builds the image bench.tar on any Debian machine; "
    "load it with `pinnace image load bench.tar`. docs/evaluation.md says how to make another."
)
COPY = """
out=$1; shift
mkdir -p "$out/bin" "$out/lib" || exit 1
for tool in "$@"; do
  path=$(command -v "$tool") || { echo "missing $tool"; continue; }
  cp -L "$path" "$out/bin/$tool" || exit 1
  if libraries=$(ldd "$path" 2>/dev/null); then
    for library in $(echo "$libraries" | grep -o '/[^ )]*'); do cp -L "$library" "$out/lib/" || exit 1; done
    echo "dynamic $tool"
  else
    echo "static $tool"
  fi
done
"""


def copy_argv(target: Path, tools: Collection[str]) -> list[str]:
    """What the pod runs. It prints a line for each program: missing, static or dynamic."""
    return ["sh", "-c", COPY, "sh", str(target), *tools]


def needed(tasks: Sequence[Task]) -> list[str]:
    """The programs that these tasks run."""
    kinds = {task.kind for task in tasks}
    return [str(kind) for kind in PROGRAMS if kind in kinds]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The programs in a directory that all hosts share."""

    directory: Path
    dynamic: frozenset[str]
    loader: str = ""

    @staticmethod
    def copied(directory: Path, printed: str, tools: Collection[str], image: str) -> Tools:
        """What ``copy_argv`` has copied. BenchError if a program is missing."""
        states = {tool: state for state, _, tool in (line.partition(" ") for line in printed.splitlines())}
        missing = [tool for tool in tools if states.get(tool, "missing") == "missing"]
        if missing:
            raise BenchError(
                f"the image {image} has no {', '.join(missing)}",
                hint=f"Name an image that has all (--image-name), or leave out what needs them (--only). {HOW_TO_GET}",
            )
        loaders = sorted(path.name for path in (directory / "lib").glob("ld*.so*"))
        dynamic = frozenset(tool for tool, state in states.items() if state == "dynamic")
        if dynamic and not loaders:
            raise BenchError(f"the image {image} has no loader for {', '.join(sorted(dynamic))}", hint=HOW_TO_GET)
        return Tools(directory=directory, dynamic=dynamic, loader=loaders[0] if loaders else "")

    def argv(self, argv: Sequence[str]) -> list[str]:
        """A command with its program from this directory, if that is one of the image's."""
        program = self.directory / "bin" / argv[0]
        if not program.exists():
            return list(argv)
        if argv[0] not in self.dynamic:
            return [str(program), *argv[1:]]
        libraries = self.directory / "lib"
        return [str(libraries / self.loader), "--library-path", str(libraries), str(program), *argv[1:]]
