"""A run's files: nothing that was measured is lost, and only what is missing is measured again."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinnace.bench.measurements import QUICK, TASKS, Group, Model, selected
from pinnace.bench.results import as_csv, as_json, errors_of, results_of, write
from pinnace.bench.run_directory import RunDirectory, Sample, Settings
from pinnace.bench.runner import Runner, never_connected, plan_of
from pinnace.bench.sessions import Site
from pinnace.errors import BenchError
from support.bench_samples import HOST, run_at, samples

if TYPE_CHECKING:
    from pathlib import Path


class Silent:
    def begin(self, text: str) -> None: ...
    def done(self, text: str) -> None: ...
    def failed(self, text: str, hint: str = "") -> None: ...


def test_settings_survive_the_file(tmp_path: Path) -> None:
    settings = Settings(options={"partition": "main", "exclusive": None}, parameters=QUICK, only=("cpu",), repeat=3)
    assert RunDirectory.create(tmp_path / "run", settings).settings == settings


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", samples())
    with (run.path / "samples.jsonl").open("a") as file:
        file.write('{"round": 1, "mod')
    assert run.samples() == samples()


def test_outputs_are_kept(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run")
    run.add(samples()[0], "what sysbench printed\n")
    assert (run.path / "outputs/001-bare-cpu.txt").read_text() == "what sysbench printed\n"


def test_other_directories_are_refused(tmp_path: Path) -> None:
    run_at(tmp_path / "run")
    with pytest.raises(BenchError, match="exists already") as error:
        run_at(tmp_path / "run")
    assert "--resume" in error.value.hint
    with pytest.raises(BenchError, match=r"no run\.json"):
        RunDirectory.existing(tmp_path)
    (tmp_path / "run/run.json").write_text('{"format": 99}')
    with pytest.raises(BenchError, match="another version"):
        RunDirectory.existing(tmp_path / "run")


def test_a_run_has_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run_at(tmp_path / "empty").path == tmp_path / "empty"
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis").touch()
    with pytest.raises(BenchError, match="is not empty"):
        run_at(tmp_path / "used")
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["thesis"]
    for path, message in (("used/thesis", "is no directory"), ("used/thesis/run", "cannot be made: ")):
        with pytest.raises(BenchError, match=message) as error:
            run_at(tmp_path / path)
        assert "--output" in error.value.hint


def test_what_is_not_of_the_run_stays_when_it_is_discarded(tmp_path: Path) -> None:
    run_at(tmp_path / "some/new").discard()
    assert not (tmp_path / "some/new").exists()
    (tmp_path / "empty").mkdir()
    run_at(tmp_path / "empty").discard()
    assert list((tmp_path / "empty").iterdir()) == []
    run = run_at(tmp_path / "run")
    (run.path / "notes").touch()
    run.discard()
    assert [path.name for path in run.path.iterdir()] == ["notes"]
    run_at(tmp_path / "other")
    RunDirectory.existing(tmp_path / "other").discard()
    assert RunDirectory.existing(tmp_path / "other").settings.repeat == 10


def test_only_a_directory_that_a_run_makes_can_be_removed() -> None:
    own = Settings(directory="/shared/pinnace-bench-1a2b", identifier="1a2b")
    assert str(own.removable_directory) == "/shared/pinnace-bench-1a2b"
    for directory, identifier in (("/home/alice", "1a2b"), ("", ""), ("/shared/pinnace-bench-", "")):
        with pytest.raises(BenchError, match="would be removed"):
            _ = Settings(directory=directory, identifier=identifier).removable_directory


def test_each_round_begins_with_another_model() -> None:
    models = (Model.BARE, Model.OVER, Model.PODS)
    order = [(number, model) for number, model, _ in plan_of(models, selected(["cpu"], hosts=1), 4)]
    assert order == [
        (1, "bare"), (1, "over"), (1, "pods"),
        (2, "over"), (2, "pods"), (2, "bare"),
        (3, "pods"), (3, "bare"), (3, "over"),
        (4, "bare"), (4, "over"), (4, "pods"),
    ]  # fmt: skip


def test_models_do_only_what_they_can() -> None:
    for _, model, tasks in plan_of(tuple(Model), TASKS, 1):
        assert {task.name for task in tasks} == {task.name for task in TASKS if model in task.models}
        assert (model is Model.OVER) == ("dns" in {task.name for task in tasks})


def test_only_what_is_missing_or_failed_is_left(tmp_path: Path) -> None:
    failed = Sample(round=2, model=Model.OVER, task="cpu", error="the host is gone")
    done = [sample for sample in samples() if sample.round == 1 and sample.task == "cpu"]
    run = run_at(tmp_path / "run", [*done, failed], repeat=2, models=(Model.BARE, Model.OVER), only=("startup", "cpu"))
    site = Site(settings=run.settings, hosts=("n1",), cpus=1, addresses={})
    left = [(number, model, [task.name for task in tasks]) for number, model, tasks in
            Runner(run=run, listener=Silent()).left(site)]  # fmt: skip
    assert left == [
        (1, "bare", ["startup"]), (1, "over", ["startup"]),
        (2, "over", ["startup", "cpu"]), (2, "bare", ["startup", "cpu"]),
    ]  # fmt: skip


def test_a_result_is_compared_with_its_own_baseline() -> None:
    found = {(result.figure.name, result.model): result for result in results_of(samples())}
    assert found["cpu", Model.OVER].ratio == pytest.approx(0.998)
    assert found["fio-shared-read", Model.OVER].ratio == pytest.approx(0.8)  # of the shared directory
    assert found["cpu", Model.BARE].ratio is None
    interval = found["startup", Model.OVER].interval
    assert interval
    assert interval[0] > 30
    assert [result.group for result in results_of(samples())] == sorted(
        (result.group for result in results_of(samples())), key=list(Group).index
    )


def test_what_was_done_again_counts_once_and_what_failed_at_last_is_told() -> None:
    failed = Sample(round=1, model=Model.BARE, task="cpu", error="no")
    again = Sample(round=1, model=Model.BARE, task="cpu", values={"cpu": 5.0})
    other = Sample(round=2, model=Model.BARE, task="cpu", error="gone")
    [result] = results_of([failed, again, other])
    assert result.values == (5.0,)
    assert errors_of([failed, again, other]) == [other]


def test_the_files_have_everything_raw(tmp_path: Path) -> None:
    failed = Sample(round=6, model=Model.OVER, task="cpu", error="a host, gone")
    run = run_at(tmp_path / "run", [*samples(), failed])
    write(run)
    data = json.loads((run.path / "results.json").read_text())
    assert data == json.loads(json.dumps(as_json(run)))
    assert data["machine"]["descriptions"] == [HOST]
    assert data["published"]["figures"]["iperf3"]["KSI"] == 612.8
    assert len(data["samples"]) == len(samples()) + 1
    rows = list(csv.DictReader(io.StringIO((run.path / "results.csv").read_text())))
    assert len(rows) == len(samples()) + 1
    assert rows[0] | {"value": "1000.0", "unit": "events/s", "model": "bare"} == rows[0]
    assert rows[-1]["error"] == "a host, gone"
    assert as_csv(run.samples()).count("\r\n") == len(rows) + 1


def test_only_a_server_that_is_not_there_yet_is_waited_for() -> None:
    assert never_connected("exit code 1: rr: socket: Connection refused")
    assert never_connected("iperf3: unable to connect to server: Connection refused")
    assert not never_connected("no result within 120 s")


def test_no_shell_is_needed_to_read_a_run(tmp_path: Path) -> None:
    """`pinnace bench report` and `compare` work on a copy, wherever it is."""
    run = run_at(tmp_path / "run", samples())
    shutil.copytree(run.path, tmp_path / "copy")
    argv = ["pinnace", "bench", "compare", str(run.path), str(tmp_path / "copy")]
    result = subprocess.run(
        [sys.executable, "-m", *argv], capture_output=True, text=True, check=True, timeout=60
    )  # fmt: skip
    assert f"{len(results_of(samples()))} compared" in result.stderr
