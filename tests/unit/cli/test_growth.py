"""`pinnace bench growth`: what it refuses before it submits anything, and what it writes when it is cut short."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.bench.growth.directory import GrowthDirectory, read_growth
from pinnace.bench.growth.runner import GrowthRunner
from pinnace.bench.growth.sizes import parse_sizes
from pinnace.cli.bench_output import Lines
from pinnace.cli.growth import MEMORY, measure
from pinnace.cli.slurm_options import with_memory
from pinnace.components.manifest import architecture, manifest
from pinnace.components.store import ComponentStore, Origin
from pinnace.errors import BenchError
from support.bench_samples import run_at, samples
from support.growth_samples import sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from pinnace.bench.growth.load import LoadSample
    from pinnace.bench.growth.sizes import NodesAndPods


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a Slurm that notes that it was asked for a job."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit 1\n')
    (tmp_path / "bin" / "srun").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "PINNACE_"))}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return kept | {"PINNACE_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": path}


def run(environment: dict[str, str], *words: str, code: int = 1) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pinnace", "bench", *words]
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result


def install_kwok(home: Path) -> None:
    store, kwok = ComponentStore(home / "components", architecture()), manifest()["kwok"]

    def source(target: Path) -> tuple[Origin, str]:
        (target / "kwok").write_bytes(b"kwok")
        return Origin.BUILD, "go1.2.3"

    with store.lock(kwok, lambda _holder: None):
        store.install(kwok, source)


def test_without_kwok_it_says_how_to_get_it_and_submits_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    said = run(environment, "growth", "--output", str(tmp_path / "out")).stderr
    assert "kwok 0.8.0, which simulates the nodes, is not in the store" in said
    assert "Run `pinnace fetch kwok`" in said
    assert "needs Go" in said
    assert "pinnace fetch --from FILE kwok" in said
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [("10", "'10' is no size"), ("100:10,10:100", "10:100 comes after 100:10"), ("", "there is no size")],
)
def test_sizes_that_do_not_grow_are_refused(environment: dict[str, str], sizes: str, message: str) -> None:
    assert message in run(environment, "growth", "--sizes", sizes, code=2).stderr


def test_it_is_refused_inside_a_job(environment: dict[str, str]) -> None:
    said = run(environment | {"SLURM_JOB_ID": "7"}, "growth", code=2).stderr
    assert "inside a Slurm job" in said
    assert "on a login node" in said


def test_it_is_refused_where_there_is_no_slurm(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "srun").unlink()
    assert "there is no `srun` here" in run(environment | {"PATH": str(tmp_path / "bin")}, "growth").stderr


def test_options_of_a_run_are_not_taken_for_its_own(environment: dict[str, str]) -> None:
    said = run(environment, "--output", "out", "growth", code=2).stderr
    assert "--output before `growth`" in said


def test_an_output_that_is_a_file_or_has_other_things_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    install_kwok(tmp_path / "home")
    (tmp_path / "file").write_text("mine")
    assert "is no directory" in run(environment, "growth", "--output", str(tmp_path / "file")).stderr
    assert "is not empty" in run(environment, "growth", "--output", str(tmp_path)).stderr
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "asked").exists()


def test_a_cluster_that_cannot_start_leaves_no_directory(environment: dict[str, str], tmp_path: Path) -> None:
    install_kwok(tmp_path / "home")
    said = run(environment, "growth", "--output", str(tmp_path / "out")).stderr
    assert "kubernetes 1.36.3 is not in the store" in said
    assert not (tmp_path / "out").exists()


def test_a_control_plane_of_thousands_of_pods_has_more_memory_than_others() -> None:
    assert with_memory({"nodes": "2"}, {}, MEMORY) == {"mem": "7000M"}
    assert with_memory({"mem": "5G"}, {}, MEMORY) == {"mem": "5G"}
    assert with_memory({}, {"PINNACE_MEMORY": "none"}, MEMORY) == {}


class CutSession:
    """Fails at 500 nodes."""

    def machine(self) -> dict[str, Any]:
        return {}

    def measure(self, size: NodesAndPods) -> LoadSample:
        if size.nodes == 500:
            raise BenchError("the job has ended")
        return sample(*size)


@contextlib.contextmanager
def cut_session() -> Iterator[CutSession]:
    yield CutSession()


def cut_runner(path: Path, sizes: str = "10:100,100:1000,500:5000") -> GrowthRunner:
    asked = parse_sizes(sizes)
    about = {"sizes": [str(size) for size in asked]}
    directory = GrowthDirectory.create(path)
    return GrowthRunner(directory=directory, sizes=asked, opened=cut_session, listener=Lines(), conditions=about)


def test_a_failure_keeps_what_was_measured_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BenchError, match="the job has ended"):
        measure(cut_runner(tmp_path / "out"))
    said = capsys.readouterr()
    assert "100 nodes, 1,000 pods: nodes ready in 2.900 s" in said.err
    assert "stopped: what was measured is in" in said.err
    assert "missing: 500:5000" in said.err
    growth = read_growth(tmp_path / "out")
    assert growth
    assert len(growth.sizes) == 2
    assert "Not measured: 500:5000" in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "plots" / "7-growth.png").exists()


def test_a_failure_before_the_first_size_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="the job has ended"):
        measure(cut_runner(tmp_path / "out", "500:5000"))
    assert not (tmp_path / "out").exists()


def test_the_table_is_printed_and_again_by_report(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(cut_runner(tmp_path / "out", "10:100,100:1000"))
    printed = capsys.readouterr().out
    assert "pods per second" in printed
    (tmp_path / "out" / "report.html").unlink()
    again = run(environment, "report", str(tmp_path / "out"), code=0)
    assert again.stdout == printed
    assert (tmp_path / "out" / "report.html").exists()
    assert run(environment, "report", "--markdown", str(tmp_path / "out"), code=0).stdout.startswith("| nodes | pods |")


def test_the_report_of_a_run_has_the_growth_in_its_directory(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run_at(tmp_path / "run", samples())
    measure(cut_runner(made.path, "10:100"))
    assert "<h2>Growth</h2>" in (made.path / "report.html").read_text()
    (made.path / "report.html").unlink()
    printed = run(environment, "report", str(made.path), code=0).stdout
    assert capsys.readouterr().out in printed
    assert "<h2>Growth</h2>" in (made.path / "report.html").read_text()
    (made.path / "growth.json").write_text("{")
    said = run(environment, "report", str(made.path), code=0).stderr
    assert "growth.json cannot be read" in said
    assert "<h2>Growth</h2>" not in (made.path / "report.html").read_text()
