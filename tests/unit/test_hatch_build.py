"""The packet loop's library: built where there is a compiler, without warnings, and never an old one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import hatch_build
from pinnace.network import native_packet_loop

PROJECT = Path(hatch_build.__file__).parent
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with the library's source alone."""
    source = tmp_path / hatch_build.SOURCE
    source.parent.mkdir(parents=True)
    shutil.copy(PROJECT / hatch_build.SOURCE, source)
    return tmp_path


@needs_compiler
def test_the_source_has_no_warnings(tree: Path) -> None:
    argv = hatch_build.compile_argv("cc", tree / hatch_build.SOURCE, tree / "library.so")
    subprocess.run([*argv, "-Werror", "-Wconversion", "-Wshadow"], check=True, timeout=60)


@needs_compiler
def test_a_library_is_built_that_fits_its_source(tree: Path) -> None:
    assert hatch_build.build(tree)
    assert native_packet_loop.load(tree / hatch_build.LIBRARY).queue_next


@needs_compiler
def test_the_library_in_this_tree_is_not_older_than_its_source() -> None:
    """`make setup` builds it."""
    native_packet_loop.load()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"], ids=["none", "broken"])
def test_without_a_compiler_no_old_library_is_left(tree: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    """Such as one without the C library's headers."""
    monkeypatch.setenv("CC", compiler)
    library = tree / hatch_build.LIBRARY
    library.touch()
    assert not hatch_build.build(tree)
    assert not library.exists()
