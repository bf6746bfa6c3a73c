"""What keeps the user's groups, in C and in Python, with a real kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pinnace.c_library import checksum, sources
from pinnace.sandbox import keeping_groups
from pinnace.sandbox.keeping_groups import NO_PROGRAM, PROGRAM, SOURCES, keeper_argv

TRY = "import os; os.setgroups([]); print(os.getgroups())"
KEEPERS = {"c": PROGRAM, "python": Path("/no/such/program")}
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be in any group")


def run(*argv: str, groups: tuple[int, ...] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, extra_groups=groups)


def in_a_namespace(*argv: str, groups: tuple[int, ...] | None = None) -> subprocess.CompletedProcess[str]:
    """As root of a user namespace."""
    return run("unshare", "--user", "--map-root-user", *argv, groups=groups)


@pytest.fixture(params=KEEPERS)
def keeper(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "c" and not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    argv = keeper_argv(KEEPERS[request.param])
    assert (argv[0] == str(PROGRAM)) is (request.param == "c"), "`make setup` builds it"
    return argv


@needs_root
def test_groups_are_dropped_without_it_and_kept_with_it(keeper: list[str]) -> None:
    program = (sys.executable, "-c", TRY)
    assert run(*program, groups=(0, 4321)).stdout == "[]\n"
    assert run(*keeper, *program, groups=(0, 4321)).stdout == "[0, 4321]\n"
    assert "not permitted" in in_a_namespace(*program).stderr, "this namespace denies it"
    assert in_a_namespace(*keeper, *program, groups=(0, 4321)).stdout == "[0, 65534]\n"


def test_arguments_environment_and_exit_code_are_the_programs(keeper: list[str]) -> None:
    script = 'printf "%s|" "$0" "$@"; exit 7'
    done = in_a_namespace(*keeper, "/bin/sh", "-c", script, "one two", "--three", "")
    assert (done.returncode, done.stdout, done.stderr) == (7, "one two|--three||", "")


def test_a_program_that_is_not_there(keeper: list[str]) -> None:
    done = in_a_namespace(*keeper, "/no/such/runc", "create")
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr


@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize("fits", [True, False])
def test_a_program_that_is_old_or_does_not_run_is_not_used(tmp_path: Path, code: int, *, fits: bool) -> None:
    """Such as one that the loader refuses."""
    made = tmp_path / "made"
    made.write_text(f"#!/bin/sh\n# {checksum(sources(SOURCES)) if fits else 'old'}\nexit {code}\n")
    made.chmod(0o755)
    expected = [str(made)] if fits and code == NO_PROGRAM else [sys.executable, "-S"]
    assert keeper_argv(made)[:2] == expected


@needs_root
def test_whether_there_are_groups_to_keep() -> None:
    ask = f"import sys; sys.path[:] = {sys.path!r}; from {keeping_groups.__name__} import has_groups as it; print(it())"
    for groups, kept in (((0,), False), ((0, 4321), True)):
        assert in_a_namespace(sys.executable, "-c", ask, groups=groups).stdout == f"{kept}\n"
