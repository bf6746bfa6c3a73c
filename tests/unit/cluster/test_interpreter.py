"""No Python of ours runs what lies in its working directory, or what the environment points to."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.interpreter import python_argv, with_own_packages, without_relative

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = ("pinnace/__init__.py", "argparse.py", "json.py", "socket.py", "re.py", "click.py", "sitecustomize.py",
           "usercustomize.py")  # fmt: skip


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory in which every module that we use says that it was run."""
    for name in PLANTED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"import os; os.open({str(tmp_path / 'caught')!r}, os.O_CREAT)")
    return tmp_path


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"PYTHONPATH": ""},
        {"PYTHONPATH": ".:/usr"},
        {"PYTHONPATH": "{trap}"},
        {"PYTHONSTARTUP": "{trap}/re.py", "PYTHONUSERBASE": "{trap}", "PYTHONINSPECT": ""},
        {"PYTHONPLATLIBDIR": "{trap}", "PYTHONPYCACHEPREFIX": "{trap}"},
    ],
    ids=lambda variables: " ".join(variables) or "none",
)
@pytest.mark.parametrize("module", ["pinnace.node", "pinnace.podjobs.controller", "pinnace"])
def test_nothing_planted_is_run(trap: Path, module: str, variables: dict[str, str]) -> None:
    environment = {**os.environ, **{name: value.format(trap=trap) for name, value in variables.items()}}
    done = subprocess.run(
        python_argv(module, "--help"),
        cwd=trap,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert not (trap / "caught").exists()


def test_what_is_planted_would_be_run_otherwise(trap: Path) -> None:
    subprocess.run([sys.executable, "-m", "pinnace.node"], cwd=trap, capture_output=True, check=False, timeout=60)
    assert (trap / "caught").exists()


def test_the_command_itself_imports_nothing_from_a_relative_path(trap: Path) -> None:
    """What runs before our first line is Python's own business; ``click`` is not."""
    for name in set(PLANTED) - {"click.py"}:
        (trap / name).unlink()
    code = "from pinnace.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "version"], cwd=trap, env={**os.environ, "PYTHONPATH": ":/usr"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (trap / "caught").exists()


def test_our_own_packages_come_after_the_standard_library_and_before_all_others() -> None:
    path = ["/lib/python3.11", "/lib/python3.11/lib-dynload", "/venv/site-packages", "/other/site-packages"]
    own = "/other/site-packages"
    assert with_own_packages(path, own) == [*path[:2], own, path[2]]
    assert with_own_packages(path[:2], own) == [*path[:2], own]


def test_what_a_relative_entry_became_is_left_out() -> None:
    path = ["/work/shared", "/work/shared/lib", "/absolute", "/lib/python3.11"]
    assert without_relative(path, ":/absolute", "/work/shared") == path[1:]
    assert without_relative(path, "lib", "/work/shared") == [path[0], *path[2:]]
    assert without_relative(path, "/absolute", "/work/shared") == path
    assert without_relative(path, "", "/work/shared") == path
