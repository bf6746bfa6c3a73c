"""`pinnace bench`: what it asks Slurm for, and that a run which fails takes nothing of the user's along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from pinnace.cli.bench import Names
from pinnace.cli.slurm_options import with_memory
from support.bench_samples import run_at

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a Slurm that notes what it was asked for, and refuses it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho refused >&2\nexit 1\n')
    (tmp_path / "bin" / "srun").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "PINNACE_"))}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return kept | {"PINNACE_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": path}


def bench(environment: dict[str, str], *options: str) -> str:
    """What a run says that fails before its first sample."""
    argv = [sys.executable, "-m", "pinnace", "bench", *options]
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1, result.stderr
    return result.stderr


def new(environment: dict[str, str], output: Path) -> str:
    return bench(environment, "--only", "cpu", "--image-name", "example.org/bench:1", "--output", str(output))


def test_a_directory_with_files_of_others_is_refused_and_stays(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine" / "thesis").mkdir(parents=True)
    (tmp_path / "mine" / "thesis" / "text").write_text("years of work")
    said = new(environment, tmp_path / "mine")
    assert f"{tmp_path / 'mine'} is not empty" in said
    assert "choose another --output" in said
    assert (tmp_path / "mine" / "thesis" / "text").read_text() == "years of work"
    assert not (tmp_path / "asked").exists()


def test_a_run_without_samples_removes_only_what_it_has_made(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        assert "Slurm gave no hosts: refused" in new(environment, tmp_path / name)
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "new").exists()


def test_a_run_that_is_resumed_without_samples_stays(environment: dict[str, str], tmp_path: Path) -> None:
    directory = tmp_path / "home" / "bench" / "pinnace-bench-1a2b"
    image = "example.org/bench:1"
    made = run_at(tmp_path / "made", only=("cpu",), directory=str(directory), identifier="1a2b")
    made.update(settings=made.about()["settings"] | {"image": image, "startup_image": image})
    (tmp_path / "made" / "notes").write_text("of mine")
    before = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert "Slurm gave no hosts: refused" in bench(environment, "--resume", str(tmp_path / "made"))
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == before


def test_only_a_directory_of_a_run_is_removed_after_it(environment: dict[str, str], tmp_path: Path) -> None:
    """The file of a run that is resumed may be somebody else's."""
    (tmp_path / "mine").mkdir()
    run_at(tmp_path / "run", only=("cpu",), directory=str(tmp_path / "mine"), identifier="1a2b")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert "would be removed after it" in bench(environment, "--resume", str(tmp_path / "copy"))
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("memory", "words", "asked"),
    [("", [], "--mem=3G"), ("8G", [], "--mem=8G"), ("8G", ["--mem=5G"], "--mem=5G"), ("none", [], "")],
)
def test_hosts_have_the_memory_that_a_cluster_would_have(
    environment: dict[str, str], tmp_path: Path, memory: str, words: list[str], asked: str
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "pinnace.toml").write_text(f'memory = "{memory}"\n' if memory else "")
    image = ["--image-name", "example.org/bench:1"]
    bench(environment, "--only", "cpu", *image, "--output", str(tmp_path / "run"), *words)
    given = (tmp_path / "asked").read_text().split()
    assert [word for word in given if word.startswith("--mem")] == ([asked] if asked else [])


def test_the_number_of_nodes_is_no_option_of_every_job() -> None:
    assert with_memory({"nodes": "4", "partition": "main"}, {}) == {"partition": "main", "mem": "3G"}
    assert with_memory({"exclusive": None}, {}) == {"exclusive": None}


def test_what_can_be_measured_is_named_once() -> None:
    with pytest.raises(click.BadParameter, match=r"^nosuch is none of cpu, dns, api$"):
        Names(["cpu", "dns", "cpu", "api"]).convert("cpu,nosuch", None, None)
