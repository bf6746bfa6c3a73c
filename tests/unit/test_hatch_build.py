"""What we have in C: built where there is a compiler, without warnings, and never an old one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import hatch_build
from pinnace.network import c_library, native_packet_loop
from pinnace.network.native import library

PROJECT = Path(hatch_build.__file__).parent
C_LIBRARY = f"{hatch_build.NETWORK}/c_library.py"
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with what a build needs alone."""
    for directory in hatch_build.LIBRARIES.values():
        shutil.copytree(PROJECT / directory, tmp_path / directory)
    shutil.copy(PROJECT / C_LIBRARY, tmp_path / C_LIBRARY)
    return tmp_path


@needs_compiler
@pytest.mark.parametrize("directory", hatch_build.LIBRARIES.values())
def test_the_sources_have_no_warnings(directory: str, tmp_path: Path) -> None:
    argv = hatch_build.compile_argv("cc", c_library.sources(PROJECT / directory), tmp_path / "library.so", "")
    subprocess.run([*argv, "-Werror", "-Wconversion", "-Wshadow"], check=True, timeout=60)


@needs_compiler
def test_libraries_are_built_that_fit_their_sources(tree: Path) -> None:
    for built in hatch_build.build(tree):
        assert c_library.load(tree / built, c_library.sources(tree / hatch_build.LIBRARIES[built]))


@needs_compiler
def test_the_libraries_in_this_tree_are_not_older_than_their_sources() -> None:
    """`make setup` builds them."""
    native_packet_loop.load()
    library.load()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"], ids=["none", "broken"])
def test_without_a_compiler_no_old_library_is_left(tree: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    """Such as one without the C library's headers."""
    monkeypatch.setenv("CC", compiler)
    old = [tree / name for name in hatch_build.LIBRARIES]
    for path in old:
        path.touch()
    assert hatch_build.build(tree) == []
    assert not any(path.exists() for path in old)
