"""`pinnace run`: what is wrong with a workload is said before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a Slurm that notes that it was asked for a job."""
    (tmp_path / "bin").mkdir()
    for name in ("srun", "sbatch"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/submitted\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return os.environ | {"PINNACE_HOME": str(tmp_path / "home"), "PATH": path}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.yaml", "kind: [", "broken.yaml, line 1: "),
        ("half.yaml", f"{POD}---\nkind: Job\n", "half.yaml, line 5: the object has no apiVersion"),
        ("empty.yaml", "# nothing\n", "there is no object in empty.yaml"),
        ("-", "kind: [", "standard input, line 1: "),
        ("-", "", "there is no object in standard input"),
        ("missing/", None, "there is no file missing/"),
        ("directory", None, "there is no object in directory"),
        ("directory/script.sh", "#!/bin/sh\n", "directory/script.sh is no program that can be run"),
    ],
)
def test_a_bad_workload_starts_nothing(
    tmp_path: Path, environment: dict[str, str], name: str, content: str | None, message: str
) -> None:
    (tmp_path / "directory").mkdir()
    if content is not None and name != "-":
        (tmp_path / name).write_text(content)
    result = subprocess.run(
        [sys.executable, "-m", "pinnace", "run", name], cwd=tmp_path, env=environment, check=False, timeout=60,
        capture_output=True, text=True, input=content if name == "-" else "",
    )  # fmt: skip
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "submitted").exists()
    assert not (tmp_path / "home" / "clusters").exists()
