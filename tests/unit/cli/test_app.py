"""The command as a whole: its commands, and a file with settings that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from pinnace.cli.app import MODULES, pinnace

if TYPE_CHECKING:
    from pathlib import Path


def test_clusters_are_found_where_a_file_says_that_is_wrong_otherwise(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "clusters" / "mine").mkdir(parents=True)
    (tmp_path / "pinnace.toml").write_text(f'home = "{tmp_path}/elsewhere"\npartitoin = "main"\n')
    environment = {name: value for name, value in os.environ.items() if name != "PINNACE_HOME"}
    environment |= {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    result = subprocess.run(
        [sys.executable, "-m", "pinnace", "down", "other"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "there is no setting 'partitoin'" in result.stderr
    assert "Your clusters: mine." in result.stderr


@pytest.mark.parametrize("name", MODULES)
def test_commands_are_where_they_are_said_to_be(name: str) -> None:
    command = pinnace.get_command(click.Context(pinnace), name)
    assert command
    assert command.name == name


def test_a_command_does_not_load_the_others() -> None:
    code = (
        "import click, sys; from pinnace.cli.app import pinnace; pinnace.get_command(click.Context(pinnace), 'run');"
        "print(*{'asyncio', 'pinnace.bench', 'pinnace.bridge', 'pinnace.node.checks'} & sys.modules.keys())"
    )
    argv = [sys.executable, "-c", code]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split() == []
