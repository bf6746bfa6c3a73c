"""Builds the packet loop's library into the wheel, and into the source tree for an editable installation.

Without a C compiler that works the wheel is pure Python, and the packet loop in Python is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/pinnace/network/packets.c"
LIBRARY = "src/pinnace/network/_packets.so"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")


def compile_argv(compiler: str, source: Path, library: Path) -> list[str]:
    """The command that builds the library. It contains the checksum of its source (``native_packet_loop.load``)."""
    checksum = hashlib.sha256(source.read_bytes()).hexdigest()
    return [compiler, *FLAGS, f'-DPACKETS_SOURCE="{checksum}"', "-o", str(library), str(source)]


def build(root: Path) -> bool:
    """Build the library in a source tree. Whether that was possible; if not, there is none: not an old one either."""
    library = root / LIBRARY
    compiler = shutil.which(os.environ.get("CC", "cc"))
    new = library.with_name(f"{library.name}.{os.getpid()}")  # others may build, or read the library, at the same time
    if compiler and not subprocess.run(compile_argv(compiler, root / SOURCE, new), check=False, timeout=120).returncode:
        new.replace(library)
        return True
    library.unlink(missing_ok=True)
    return False


class PacketLoopHook(BuildHookInterface[Any]):
    """Called by hatchling before it makes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's interface
        if build(Path(self.root)):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append(LIBRARY)
        else:
            self.app.display_warning("no C compiler that works: the packet loop in Python will be used")
