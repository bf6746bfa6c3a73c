"""A library that is not what its sources say is not used."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pinnace import c_library
from pinnace.c_library import LibraryError
from pinnace.network.native.library import LIBRARY, SOURCES

if TYPE_CHECKING:
    from pathlib import Path


def test_one_that_was_not_built(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="without a C compiler"):
        c_library.load(tmp_path / "none.so", [])


def test_one_that_is_older_than_its_sources(tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "sockets")
    (tmp_path / "sockets" / "loop.c").write_text("/* changed */\n")
    with pytest.raises(LibraryError, match="not built from the sources"):
        c_library.load(LIBRARY, c_library.sources(tmp_path / "sockets"))
