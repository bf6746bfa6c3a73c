"""Every size is written the moment it is there, and kept, whatever happens afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.bench.growth import session as growth_session_module
from pinnace.bench.growth.directory import GrowthDirectory, read_growth
from pinnace.bench.growth.kwok import simulating
from pinnace.bench.growth.runner import GrowthRunner
from pinnace.bench.growth.session import GrowthSession, delete_simulated_nodes
from pinnace.bench.growth.sizes import NodesAndPods, parse_sizes
from pinnace.bench.run_directory import RunDirectory, Settings
from pinnace.errors import BenchError, ClusterError
from support.bench_samples import run_at
from support.growth_samples import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pinnace.bench.growth.load import LoadSample


class Heard:
    """What a runner says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, text: str) -> None: ...
    def failed(self, text: str, hint: str = "") -> None: ...

    def done(self, text: str) -> None:
        self.lines.append(text)


class FakeSession:
    """A cluster that fails when it is brought to one of the sizes."""

    def __init__(self, look: Callable[[], None], failure: BaseException | None, fails_at: int) -> None:
        self._look, self._failure, self._fails_at = look, failure, fails_at

    def machine(self) -> dict[str, Any]:
        return {"host": "n1"}

    def measure(self, size: NodesAndPods) -> LoadSample:
        self._look()
        if self._failure and size.nodes == self._fails_at:
            raise self._failure
        return sample(*size)


def runner(path: Path, failure: BaseException | None = None, fails_at: int = 500) -> tuple[GrowthRunner, list[int]]:
    """A runner, and how many sizes were in the file whenever the next one was measured."""
    directory = GrowthDirectory.create(path)
    written: list[int] = []

    def look() -> None:
        growth = read_growth(path)
        written.append(len(growth.sizes) if growth else 0)

    @contextlib.contextmanager
    def opened() -> Iterator[FakeSession]:
        yield FakeSession(look, failure, fails_at)

    sizes = parse_sizes("10:100,100:1000,500:5000")
    conditions = {"sizes": [str(size) for size in sizes]}
    made = GrowthRunner(directory=directory, sizes=sizes, opened=opened, listener=Heard(), conditions=conditions)
    return made, written


def test_every_size_is_written_when_it_is_there(tmp_path: Path) -> None:
    made, written = runner(tmp_path / "out")
    made.execute()
    assert written == [0, 1, 2]
    assert made.missing == ()
    growth = read_growth(tmp_path / "out")
    assert growth
    assert [size.figures["nodes"] for size in growth.sizes] == [10, 100, 500]
    assert growth.conditions["machine"] == {"host": "n1"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["growth.json"]


@pytest.mark.parametrize("failure", [BenchError("the job has ended"), KeyboardInterrupt()])
def test_what_was_measured_is_kept(tmp_path: Path, failure: BaseException) -> None:
    made, _ = runner(tmp_path / "out", failure)
    with pytest.raises(type(failure)):
        made.execute()
    assert made.missing == ((500, 5000),)
    growth = read_growth(tmp_path / "out")
    assert growth
    assert growth.sizes == made.growth.sizes
    assert len(growth.sizes) == 2


def test_an_earlier_file_is_only_replaced_by_a_first_size(tmp_path: Path) -> None:
    made, _ = runner(tmp_path / "out")
    made.execute()
    before = (tmp_path / "out" / "growth.json").read_bytes()
    failing, written = runner(tmp_path / "out", BenchError("no"), fails_at=10)
    with pytest.raises(BenchError, match="no"):
        failing.execute()
    assert (tmp_path / "out" / "growth.json").read_bytes() == before
    failing.directory.discard()
    assert (tmp_path / "out" / "growth.json").read_bytes() == before
    failing, written = runner(tmp_path / "out", BenchError("no"), fails_at=100)
    with pytest.raises(BenchError, match="no"):
        failing.execute()
    assert written == [3, 1]


def test_a_directory_that_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    made, _ = runner(tmp_path / "new" / "out")
    made.directory.discard()
    assert not (tmp_path / "new" / "out").exists()


def test_directories_of_others_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BenchError, match="is no directory"):
        GrowthDirectory.create(tmp_path / "file")
    with pytest.raises(BenchError, match="is not empty"):
        GrowthDirectory.create(tmp_path)
    with pytest.raises(BenchError, match="cannot be made"):
        GrowthDirectory.create(tmp_path / "file" / "below")


def test_a_run_and_a_growth_share_a_directory_whichever_is_first(tmp_path: Path) -> None:
    run_at(tmp_path / "run")
    assert GrowthDirectory.create(tmp_path / "run").is_run
    made, _ = runner(tmp_path / "growth")
    made.execute()
    (tmp_path / "growth" / "report.html").touch()
    (tmp_path / "growth" / "plots").mkdir()
    run = RunDirectory.create(tmp_path / "growth", Settings())
    assert GrowthDirectory.create(tmp_path / "growth").is_run
    run.discard()
    assert read_growth(tmp_path / "growth")
    (tmp_path / "growth" / "thesis").touch()
    with pytest.raises(BenchError, match="is not empty"):
        RunDirectory.create(tmp_path / "growth", Settings())


@pytest.mark.parametrize(
    ("text", "message"), [("{", "cannot be read"), ("[]", "cannot be read"), ('{"format": 2}', "another version")]
)
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "growth.json").write_text(text)
    with pytest.raises(BenchError, match=message):
        read_growth(tmp_path)


class FakeCluster:
    """A cluster with a kubeconfig, whose API nobody serves; it may have ended."""

    def __init__(self, directory: Path) -> None:
        self.kubeconfig = directory / "kubeconfig"
        server = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
        user = {"name": "u", "user": {"token": "t"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        document = {"clusters": [server], "users": [user], "contexts": [context], "current-context": "x"}
        self.kubeconfig.write_text(json.dumps(document))
        self.ended = False

    def check_alive(self) -> None:
        if self.ended:
            raise ClusterError("the time limit (10:00) ended the cluster")


def program(tmp_path: Path, script: str) -> Path:
    path = tmp_path / "kwok"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_kwok_ends_with_its_context(tmp_path: Path) -> None:
    kwok = program(tmp_path, f"echo $$ $KWOK_WORKDIR > {tmp_path}/started; exec sleep 60")
    with simulating(kwok, FakeCluster(tmp_path).kubeconfig) as simulator:
        deadline = time.monotonic() + 20
        while not (tmp_path / "started").exists() or not (tmp_path / "started").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        simulator.check()
        pid, directory = (tmp_path / "started").read_text().split()
        os.kill(int(pid), 0)
    assert directory == str(tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)


def test_a_size_that_is_not_reached_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client finds no API; unless kwok or the cluster has ended, that is what is said."""
    monkeypatch.setattr(growth_session_module, "CHECK_INTERVAL", 0.1)
    cluster = FakeCluster(tmp_path)
    with simulating(program(tmp_path, "exec sleep 60"), cluster.kubeconfig) as simulator:
        session = GrowthSession(cluster, simulator)  # type: ignore[arg-type]
        with pytest.raises(BenchError, match=r"10 nodes with 100 pods: .*refused"):
            session.measure(NodesAndPods(10, 100))
        cluster.ended = True
        with pytest.raises(ClusterError, match="the time limit"):
            session.measure(NodesAndPods(10, 100))
    delete_simulated_nodes(cluster.kubeconfig)  # as far as it can
    cluster.ended = False
    with simulating(program(tmp_path, "echo no stages found >&2; exit 1"), cluster.kubeconfig) as simulator:
        session = GrowthSession(cluster, simulator)  # type: ignore[arg-type]
        with pytest.raises(BenchError, match="kwok has ended with exit code 1: no stages found"):
            session.measure(NodesAndPods(10, 100))
