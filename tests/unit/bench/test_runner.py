"""What a run does when something fails: the reason is kept, and the rest goes on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinnace.bench.measurements import Model, Server, selected
from pinnace.bench.results import errors_of
from pinnace.bench.runner import Runner, drawn_ports, perform
from pinnace.bench.sessions import Session, Site
from pinnace.errors import BenchError, NoSpaceError
from pinnace.network.listening import PortRange
from support.bench_samples import run_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pinnace.bench.measurements import FioPlace, Task
    from pinnace.bench.run_directory import RunDirectory

OUTPUTS = Path(__file__).parent / "outputs"
PRINTED = {"sysbench": "sysbench.txt", "stream": "stream.txt", "fio": "fio.json"}


class HostSession(Session):
    """A host on which programs print what they really printed once, and which may vanish."""

    job = 1

    def __init__(self, site: Site, model: Model, *, full: bool = False, vanishes: bool = False) -> None:
        super().__init__(site)
        self.model = model
        self.startup = 0.5
        self._full, self._vanishes = full, vanishes

    def run(self, argv: Sequence[str], *, limit: float, place: FioPlace | None = None, stdin: str = "") -> str:
        del limit, stdin
        assert (place is None) == (argv[0] != "fio")
        if self._vanishes and argv[0] == "stream":
            raise BenchError("no result within 120 s")
        if self._full and argv[0] == "fio":
            raise NoSpaceError("the file system is too small for the file of fio", hint="--fio-size")
        return (OUTPUTS / PRINTED[argv[0]]).read_text()

    def check(self) -> None:
        if self._vanishes:
            raise BenchError("the job has ended: a host failed")

    def pods_per_second(self, count: int, limit: float) -> float:
        raise NotImplementedError


@dataclass(kw_only=True)
class HostRunner(Runner):
    """Opens these sessions instead of real ones."""

    behaviour: dict[Model, dict[str, bool]] = field(default_factory=dict)
    closed: list[Model] = field(default_factory=list)

    @contextlib.contextmanager
    def _opened(
        self, site: Site, number: int, model: Model, tasks: Sequence[Task], settle: Callable[[], None]
    ) -> Iterator[Session]:
        del number, tasks, settle
        if self.behaviour.get(model, {}).get("refused"):
            raise BenchError("Slurm gave no hosts", hint="sinfo")
        try:
            yield HostSession(site, model, **self.behaviour.get(model, {}))
        finally:
            self.closed.append(model)


class Heard:
    def __init__(self) -> None:
        self.failures: list[str] = []
        self.begun: list[str] = []

    def begin(self, text: str) -> None:
        self.begun.append(text)

    def done(self, text: str) -> None: ...

    def failed(self, text: str, hint: str = "") -> None:
        self.failures.append(f"{text} {hint}")


def execute(run: RunDirectory, behaviour: dict[Model, dict[str, bool]]) -> tuple[HostRunner, Heard]:
    heard = Heard()
    runner = HostRunner(run=run, listener=heard, behaviour=behaviour)
    site = Site(settings=run.settings, hosts=("n1", "n2"), cpus=1, addresses={})
    for number, model, tasks in runner.left(site):
        runner._session(site, number, model, tasks)
    return runner, heard


def values(run: RunDirectory) -> set[tuple[int, str, str]]:
    return {(sample.round, sample.model, sample.task) for sample in run.samples() if not sample.error}


ONLY = ("startup", "cpu", "memory", "fio-directory")


def test_a_disk_that_is_too_small_costs_that_measurement_alone(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", repeat=1, models=(Model.BARE, Model.OVER), only=ONLY)
    _, heard = execute(run, {Model.OVER: {"full": True}})
    assert values(run) == {(1, model, task) for model in ("bare", "over") for task in ONLY} - {
        (1, "over", "fio-directory")
    }
    [failure] = heard.failures
    assert "cluster in a job: fio-directory: the file system is too small" in failure
    assert "--fio-size" in failure


def test_a_host_that_vanishes_costs_the_rest_of_its_session(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", repeat=1, models=(Model.OVER, Model.BARE), only=("cpu", "memory", "fio-directory"))
    runner, heard = execute(run, {Model.OVER: {"vanishes": True}})
    assert {task for _, model, task in values(run) if model == "bare"} == {"cpu", "memory", "fio-directory"}
    errors = {sample.task: sample.error for sample in errors_of(run.samples())}
    assert errors["fio-directory"] == "the job has ended: a host failed"
    assert runner.closed == [Model.OVER, Model.BARE]
    assert any("not measured:" in text and "fio-directory" in text for text in heard.failures)


def test_what_failed_is_measured_when_the_run_is_resumed(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", repeat=2, models=(Model.BARE, Model.OVER), only=ONLY)
    execute(run, {Model.OVER: {"vanishes": True}, Model.BARE: {"full": True}})
    before = values(run)
    execute(run, {})
    assert values(run) == {(number, model, task) for number in (1, 2) for model in ("bare", "over") for task in ONLY}
    assert before < values(run)
    assert errors_of(run.samples()) == []


def test_a_model_that_cannot_start_is_left_out_after_two_rounds(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", repeat=5, models=(Model.BARE, Model.OVER), only=("cpu",))
    _, heard = execute(run, {Model.OVER: {"refused": True}})
    assert values(run) == {(number, "bare", "cpu") for number in range(1, 6)}
    assert len(errors_of(run.samples())) == 2
    assert "left out from now on" in heard.failures[-1]


def test_outputs_of_programs_are_kept_beside_their_values(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", repeat=1, models=(Model.BARE,), only=("cpu", "fio-directory"))
    execute(run, {})
    assert {path.name for path in (run.path / "outputs").iterdir()} == {
        "001-bare-cpu.txt", "001-bare-fio-directory.txt",
    }  # fmt: skip
    [cpu] = [sample for sample in run.samples() if sample.task == "cpu"]
    assert cpu.values == {"cpu": 342.4}


def test_what_only_a_cluster_has_is_not_asked_of_a_host(tmp_path: Path) -> None:
    site = Site(settings=run_at(tmp_path / "run").settings, hosts=("n1",), cpus=1, addresses={})
    [task] = selected(["api"], hosts=1)
    with pytest.raises(TypeError, match="has no cluster"):
        perform(HostSession(site, Model.BARE), task)


class PortSession(HostSession):
    """Some of the ports that are drawn first are in use by something that hangs up."""

    def __init__(self, site: Site, *, used: int, gone: bool = False) -> None:
        super().__init__(site, Model.BARE, vanishes=gone)
        self.ports: list[str] = []
        self._used = used

    @contextlib.contextmanager
    def serving(self, argv: Sequence[str], server: Server) -> Iterator[str]:
        assert (argv[:2], server) == (["rr", "serve-tcp"], Server.HOST)
        self.ports.append(argv[2])
        yield "10.0.0.2"

    def run(self, argv: Sequence[str], *, limit: float, place: FioPlace | None = None, stdin: str = "") -> str:
        del limit, place, stdin
        assert argv[:4] == ["rr", "tcp", "10.0.0.2", self.ports[-1]]
        if len(self.ports) <= self._used:
            raise BenchError("exit code 1: rr: request: Connection reset by peer")
        return (OUTPUTS / "rr.json").read_text()


def port_session(directory: Path, *, used: int, gone: bool = False) -> PortSession:
    site = Site(settings=run_at(directory / "run").settings, hosts=("n1", "n2"), cpus=1, addresses={})
    return PortSession(site, used=used, gone=gone)


def test_a_port_that_is_in_use_is_drawn_anew(tmp_path: Path) -> None:
    [task] = selected(["tcp-rr-host"], hosts=2)
    session = port_session(tmp_path, used=2)
    assert perform(session, task)[1]["tcp-rr-host"] > 0
    assert len(set(session.ports)) == 3


@pytest.mark.parametrize(("gone", "ports", "message"), [(False, 3, "reset by peer"), (True, 1, "a host failed")])
def test_ports_are_not_drawn_for_ever(tmp_path: Path, *, gone: bool, ports: int, message: str) -> None:
    [task] = selected(["tcp-rr-host"], hosts=2)
    session = port_session(tmp_path, used=9, gone=gone)
    with pytest.raises(BenchError, match=message):
        perform(session, task)
    assert len(session.ports) == ports


def test_a_range_may_have_fewer_ports() -> None:
    assert drawn_ports(PortRange(first=4000, last=4000)) == [4000]
    assert sorted(drawn_ports(PortRange(first=4000, last=4001))) == [4000, 4001]
    assert len(set(drawn_ports(PortRange(first=4000, last=4100)))) == 3
