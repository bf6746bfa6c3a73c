"""Completion, with a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
eval "$(pinnace completion bash)"
COMP_WORDS=(%s)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_pinnace_completion pinnace
printf '%%s\\n' "${COMPREPLY[@]}"
"""


def environment(home: Path) -> dict[str, str]:
    return os.environ | {"PINNACE_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def complete(home: Path, words: str) -> list[str]:
    """What bash would offer after these words."""
    argv = ["bash", "-c", ASK % words]
    return subprocess.run(
        argv, env=environment(home), capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("first", "fifth", "other"):
        (tmp_path / "clusters" / name).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("words", ["pinnace down fi", "pinnace status fi", "pinnace kubectl --name fi"])
def test_names_of_clusters_are_completed(home: Path, words: str) -> None:
    assert complete(home, words) == ["fifth", "first"]


def test_commands_and_options_are_completed(home: Path) -> None:
    assert complete(home, "pinnace port") == ["port-forward"]
    assert "--partition" in complete(home, "pinnace up --pa")


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef pinnace"), ("fish", "function _pinnace_completion")])
def test_other_shells_have_their_script(tmp_path: Path, shell: str, begins: str) -> None:
    argv = ["pinnace", "completion", shell]
    printed = subprocess.run(
        argv, env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed.startswith(begins)
    assert "_PINNACE_COMPLETE" in printed
