"""Loads what we have in C: shared libraries and programs that ``hatch_build.py`` has built beside their sources.

Each contains the checksum of the sources that it was built from. One that is older than they are is not used.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SYMBOL = "source_checksum"


class LibraryError(Exception):
    """A library cannot be used; the message says why."""


def sources(directory: Path) -> list[Path]:
    """The sources in a directory."""
    return sorted(path for path in directory.iterdir() if path.suffix in {".c", ".h"})


def checksum(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def load(library: Path, files: Iterable[Path]) -> ctypes.CDLL:
    """A library, if it was built from these files."""
    try:
        loaded = ctypes.CDLL(str(library), use_errno=True)
        built_from = ctypes.c_char_p.in_dll(loaded, SYMBOL).value
    except (OSError, ValueError) as error:
        raise LibraryError("pinnace was installed without a C compiler") from error
    if built_from != checksum(files).encode():
        raise LibraryError(f"{library.name} was not built from the sources that are installed beside it")
    return loaded


def is_program(program: Path, files: Iterable[Path]) -> bool:
    """Whether a program is there that was built from these files."""
    try:
        return os.access(program, os.X_OK) and checksum(files).encode() in program.read_bytes()
    except OSError:
        return False
