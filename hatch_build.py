"""Builds what we have in C: into the wheel, and into the source tree for an editable installation.

Without a C compiler that works the wheel is pure Python. It works all the same, with a slower network, and slower
`kubectl exec` for users in several groups.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NETWORK = "src/pinnace/network"
LIBRARIES = {  # with the directories of their sources
    f"{NETWORK}/_packets.so": f"{NETWORK}/packets",
    f"{NETWORK}/native/_sockets.so": f"{NETWORK}/native/sockets",
}
PROGRAMS = {"src/pinnace/sandbox/_keep_groups": "src/pinnace/sandbox/keep_groups"}
TARGETS = LIBRARIES | PROGRAMS
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE")
LIBRARY_FLAGS = ("-shared", "-fPIC", "-pthread")
BUILD_LIMIT = 120.0  # seconds


def compile_argv(compiler: str, target: str, files: list[Path], output: Path, checksum: str) -> list[str]:
    """The command that builds a target. That contains the checksum of its sources (``pinnace.c_library``)."""
    sources = [str(path) for path in files if path.suffix == ".c"]
    flags = (*FLAGS, *(LIBRARY_FLAGS if target in LIBRARIES else ()))
    return [compiler, *flags, f'-DSOURCE_CHECKSUM="{checksum}"', "-o", str(output), *sources]


def build(root: Path) -> list[str]:
    """Build the targets in a source tree, and give their paths. Where one cannot be built, no old one is left."""
    compiler, c_library, built = shutil.which(os.environ.get("CC", "cc")), _c_library(root), []
    for target, directory in TARGETS.items():
        files = c_library.sources(root / directory)
        new = root / f"{target}.{os.getpid()}"  # others may build, or use the target, at the same time
        argv = compile_argv(compiler or "", target, files, new, c_library.checksum(files))
        if compiler and not subprocess.run(argv, check=False, timeout=BUILD_LIMIT).returncode:
            new.replace(root / target)
            built.append(target)
        else:
            (root / target).unlink(missing_ok=True)
    return built


def _c_library(root: Path) -> Any:
    """The module that loads them, which must not need anything that is not installed yet."""
    spec = importlib.util.spec_from_file_location("c_library", root / "src/pinnace/c_library.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


class CompilerHook(BuildHookInterface[Any]):
    """Called by hatchling before it makes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's interface
        if built := build(Path(self.root)):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"] += built
        else:
            self.app.display_warning("no C compiler that works: the network of pods will be slower")


if __name__ == "__main__":
    build(Path(__file__).parent)
