"""What is measured, with which commands, and what the programs' real outputs mean."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pinnace.bench.measurements import (
    FIGURES,
    FULL,
    QUICK,
    TASKS,
    Group,
    Model,
    Server,
    TaskKind,
    command,
    selected,
    server_command,
    stream_elements,
)
from pinnace.bench.parsing import parse
from pinnace.bench.published import PUBLISHED, System, ratio

OUTPUTS = Path(__file__).parent / "outputs"
BY_NAME = {task.name: task for task in TASKS}


def printed(name: str) -> str:
    return (OUTPUTS / name).read_text()


def test_every_figure_has_a_name_of_its_own_and_a_baseline_that_bare_slurm_measures() -> None:
    assert len(FIGURES) == sum(len(task.figures) for task in TASKS)
    bare = {figure.name for task in TASKS if Model.BARE in task.models for figure in task.figures}
    without = {figure.name for figure in FIGURES.values() if figure.of_bare not in bare}
    assert without == {"replicas", "dns", "api"}  # of the cluster alone


def test_every_published_figure_stands_beside_one_of_ours() -> None:
    assert {figure.published for figure in FIGURES.values() if figure.published} == PUBLISHED.keys()
    assert math.isclose(ratio("startup", System.KSI), 53.921 / 0.111)


def test_groups_and_single_tasks_are_chosen_and_one_host_has_no_network() -> None:
    assert [task.name for task in selected(["cpu", "tcp-rr-host"], hosts=2)] == ["cpu", "tcp-rr-host"]
    assert [task.name for task in selected(["cpu", "network"], hosts=1)] == ["cpu"]
    assert {task.group for task in selected([], hosts=2)} == set(Group)


def test_the_commands_have_the_parameters_of_the_paper() -> None:
    assert command(BY_NAME["cpu"], FULL, threads=8) == [
        "sysbench", "cpu", "--cpu-max-prime=20000", "--threads=8", "--time=10", "run",
    ]  # fmt: skip
    fio = command(BY_NAME["fio-root"], FULL, threads=1)
    assert {"--bs=256k", "--rw=read", "--rw=write", "--rw=randread", "--rw=randwrite"} <= set(fio)
    iperf3 = command(BY_NAME["iperf3-host-8"], FULL, threads=1, address="192.0.2.1", port=5)
    assert " ".join(iperf3) == "iperf3 --json --client 192.0.2.1 --port 5 --time 30 --parallel 8"
    assert server_command(BY_NAME["iperf3-host-8"], 5) == ["iperf3", "--server", "--one-off", "--port", "5"]
    rr = command(BY_NAME["tcp-rr-pod"], QUICK, threads=1, address="192.0.2.1", port=5)
    assert rr == ["rr", "tcp", "192.0.2.1", "5", "3000"]


def test_what_is_no_program_has_no_command() -> None:
    with pytest.raises(ValueError, match="startup"):
        command(BY_NAME["startup"], FULL, threads=1)


def test_a_server_in_a_pod_is_for_a_cluster_in_a_job_alone() -> None:
    assert {task.models for task in TASKS if task.server is Server.POD} == {frozenset({Model.OVER})}


def test_arrays_are_far_beyond_the_caches_and_fit_into_half_of_the_memory() -> None:
    assert stream_elements(caches=32 << 20, memory=16 << 30) * 8 >= 4 * (32 << 20)
    assert stream_elements(caches=512 << 20, memory=3 << 30) * 8 * 3 <= (3 << 30) // 2


@pytest.mark.parametrize(
    ("task", "file", "values"),
    [
        ("cpu", "sysbench.txt", {"cpu": 342.4}),
        ("memory", "stream.txt",
         {"memory-copy": 1380.8, "memory-scale": 1014.3, "memory-add": 1606.5, "memory-triad": 2401.9}),
    ],
)  # fmt: skip
def test_figures_are_read_from_text(task: str, file: str, values: dict[str, float]) -> None:
    assert parse(BY_NAME[task], printed(file)) == values


@pytest.mark.parametrize(("task", "file"), [("iperf3-host-1", "iperf3.json"), ("tcp-rr-host", "rr.json")])
def test_figures_are_read_from_json(task: str, file: str) -> None:
    [value] = parse(BY_NAME[task], printed(file)).values()
    assert value > 0


def test_fio_gives_a_figure_for_each_pattern_in_the_papers_order() -> None:
    values = parse(BY_NAME["fio-scratch"], "fio: a note\n" + printed("fio.json"))
    assert list(values) == [f"fio-scratch-{pattern}" for pattern in ("read", "write", "randread", "randwrite")]
    assert all(value > 1 for value in values.values())


def test_the_error_of_iperf3_is_its_own() -> None:
    with pytest.raises(ValueError, match="unable to connect to server: Connection refused"):
        parse(BY_NAME["iperf3-host-1"], printed("iperf3-refused.json"))


def test_wrong_values_of_stream_are_no_result() -> None:
    with pytest.raises(ValueError, match="wrong values"):
        parse(BY_NAME["memory"], printed("stream.txt").replace("as expected", "wrong"))


def test_lost_look_ups_are_no_result() -> None:
    text = "  Queries sent:         100\n  Queries completed:    {}\n  Queries per second:   5000.5\n"
    assert parse(BY_NAME["dns"], text.format(100)) == {"dns": 5000.5}
    with pytest.raises(ValueError, match="only 50 of 100"):
        parse(BY_NAME["dns"], text.format(50))


@pytest.mark.parametrize(
    "kind", [TaskKind.SYSBENCH, TaskKind.STREAM, TaskKind.FIO, TaskKind.IPERF3, TaskKind.RR, TaskKind.DNSPERF]
)
@pytest.mark.parametrize("text", ["", "{}", "Killed\n", '{"jobs": [{"jobname": "read"}]}'])
def test_another_output_is_an_error_of_its_task(kind: TaskKind, text: str) -> None:
    task = next(task for task in TASKS if task.kind is kind)
    with pytest.raises(ValueError):  # noqa: PT011 - the words are those of whatever is missing
        parse(task, text)
