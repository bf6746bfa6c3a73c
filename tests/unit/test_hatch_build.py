"""What we have in C: built where there is a compiler, without warnings, and never an old one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import hatch_build
from pinnace import c_library
from pinnace.network import native_packet_loop
from pinnace.network.native import library
from pinnace.sandbox import keeping_groups

PROJECT = Path(hatch_build.__file__).parent
C_LIBRARY = "src/pinnace/c_library.py"
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with what a build needs alone."""
    for directory in hatch_build.TARGETS.values():
        shutil.copytree(PROJECT / directory, tmp_path / directory)
    shutil.copy(PROJECT / C_LIBRARY, tmp_path / C_LIBRARY)
    return tmp_path


@needs_compiler
@pytest.mark.parametrize("target", hatch_build.TARGETS)
def test_the_sources_have_no_warnings(target: str, tmp_path: Path) -> None:
    files = c_library.sources(PROJECT / hatch_build.TARGETS[target])
    argv = hatch_build.compile_argv("cc", target, files, tmp_path / "built", "")
    subprocess.run([*argv, "-Werror", "-Wconversion", "-Wshadow"], check=True, timeout=60)


@needs_compiler
def test_what_is_built_fits_its_sources(tree: Path) -> None:
    assert hatch_build.build(tree) == [*hatch_build.TARGETS]
    for built, directory in hatch_build.LIBRARIES.items():
        assert c_library.load(tree / built, c_library.sources(tree / directory))
    for built, directory in hatch_build.PROGRAMS.items():
        assert c_library.is_program(tree / built, c_library.sources(tree / directory))
        (tree / directory / "more.h").touch()
        assert not c_library.is_program(tree / built, c_library.sources(tree / directory))


@needs_compiler
def test_what_is_built_in_this_tree_is_not_older_than_its_sources() -> None:
    """`make setup` builds it."""
    native_packet_loop.load()
    library.load()
    assert keeping_groups.keeper_argv() == [str(keeping_groups.PROGRAM)]


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"], ids=["none", "broken"])
def test_without_a_compiler_nothing_old_is_left(tree: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    """Such as one without the C library's headers."""
    monkeypatch.setenv("CC", compiler)
    old = [tree / name for name in hatch_build.TARGETS]
    for path in old:
        path.touch()
    assert hatch_build.build(tree) == []
    assert not any(path.exists() for path in old)
