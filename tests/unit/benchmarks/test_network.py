"""What the benchmark of the network says about figures, and the program that takes them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.network import ordinary, table
from benchmarks.network.measurements import MEASUREMENTS, Client, Measurement, NetworkPath, Target, Unit, command
from benchmarks.network.objects import addresses, objects
from benchmarks.network.plot import MOST_TICKS, Scale, svg
from benchmarks.network.results import Result, Sample, as_json, read_sample
from benchmarks.network.site import compile_rr
from testbed.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

THROUGHPUT = Measurement(
    what="TCP, 1 stream,",
    target=Target.POD,
    unit=Unit.THROUGHPUT,
    client=Client.IPERF3,
    options=("--parallel", "8"),
    goals={NetworkPath.NATIVE: 0.9, NetworkPath.GENERAL: 0.42},
)
LATENCY = Measurement(
    what="UDP <request/response>",
    target=Target.HOST,
    unit=Unit.TIME,
    client=Client.RR,
    options=("udp",),
    goals={NetworkPath.NATIVE: 1.5},
)


def samples(*values: float, cpu: float = 1.0, p99: float | None = None) -> list[Sample]:
    return [Sample(value=value, cpu=cpu, p99=p99) for value in values]


@pytest.fixture
def results() -> list[Result]:
    rates = {
        NetworkPath.BARE: samples(9, 10, 12, cpu=0.5),
        NetworkPath.NATIVE: samples(9.5, 8, 9),
        NetworkPath.GENERAL: samples(3, 4, 5),
    }
    times = {
        NetworkPath.BARE: samples(100, p99=150),
        NetworkPath.NATIVE: samples(151, p99=300),
        NetworkPath.GENERAL: samples(400, p99=900),
    }
    return [Result(measurement=THROUGHPUT, samples=rates), Result(measurement=LATENCY, samples=times)]


def test_a_ratio_is_that_of_the_medians(results: list[Result]) -> None:
    figures = results[0].figures(NetworkPath.NATIVE)
    assert (figures.median, figures.low, figures.high, figures.ratio) == (9, 8, 9.5, 0.9)


def test_more_throughput_and_less_time_meet_a_goal(results: list[Result]) -> None:
    assert [[result.figures(path).met for path in NetworkPath] for result in results] == [
        [None, True, False],
        [None, False, None],
    ]


def test_the_table_shows_each_path_beside_its_goal(results: list[Result]) -> None:
    header, *rows = (line.split("|")[1:-1] for line in table.markdown(results).splitlines() if "---" not in line)
    assert [[cell.strip() for cell in row][:9] for row in (header, *rows)] == [
        ["measurement", "path", "median", "min..max", "unit", "p99", "ratio", "goal", ""],
        ["TCP, 1 stream, to a pod", "bare", "10.00", "9.00..12.00", "Gbit/s", "", "", "", ""],
        ["", "native", "9.00", "8.00..9.50", "Gbit/s", "", "0.90", "≥ 0.90", "ok"],
        ["", "general", "4.00", "3.00..5.00", "Gbit/s", "", "0.40", "≥ 0.42", "missed"],
        ["UDP <request/response> to a bare host", "bare", "100", "100..100", "µs", "150", "", "", ""],
        ["", "native", "151", "151..151", "µs", "300", "1.51", "≤ 1.50", "missed"],
        ["", "general", "400", "400..400", "µs", "900", "4.00", "", ""],
    ]
    assert rows[0][9:] == [" 0.50 ", " s/GB "]


def test_the_columns_at_the_terminal_are_aligned(results: list[Result]) -> None:
    lines = table.text(results).splitlines()
    assert [line[39:].split()[0] for line in lines] == ["path", *NetworkPath, *NetworkPath]
    assert {line[38] for line in lines} == {" "}


def test_json_has_figures_and_samples(results: list[Result]) -> None:
    data = json.loads(json.dumps(as_json(results, rounds=3)))
    assert data["rounds"] == 3
    general = data["measurements"][0]["paths"]["general"]
    assert (general["ratio"], general["met"], general["samples"][0]["value"]) == (0.4, False, 3)


def test_the_plot_has_a_bar_for_each_ratio_and_a_mark_for_each_goal(results: list[Result]) -> None:
    root = ET.fromstring(svg(results))  # noqa: S314 - our own
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.90", "0.40", "1.51", "4.00", "UDP <request/response> to a bare host"} <= set(texts)
    marks = [path for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke") == "#c00"]
    assert len(marks) == 3 + 1  # and one in the legend


@pytest.mark.parametrize("end", [0.3, 1.05, 4.2, 19, 300])
def test_a_scale_has_a_few_ticks(end: float) -> None:
    scale = Scale(end=end)
    assert 2 <= len(scale.ticks) <= MOST_TICKS + 1
    assert scale.ticks[-1] <= end


def test_throughput_is_read_from_iperf3_and_the_line_after_it() -> None:
    report = {"end": {"sum_received": {"bits_per_second": 8e9, "bytes": 2e9}}}
    output = json.dumps(report, indent=1) + '\n{"cpu_seconds": 3.00}\n'
    assert read_sample(THROUGHPUT, output, requests=1) == Sample(value=8.0, cpu=1.5)


def test_times_are_read_from_rr() -> None:
    output = '{"median": 90.5, "p99": 200.0, "cpu_seconds": 0.50}\n'
    assert read_sample(LATENCY, output, requests=2000) == Sample(value=90.5, cpu=0.25, p99=200.0)


def test_times_of_other_clients_are_followed_by_the_cpu_time() -> None:
    output = '{"median": 90.5, "p99": 200.0}\n{"cpu_seconds": 0.50}\n'
    assert read_sample(LATENCY, output, requests=2000) == Sample(value=90.5, cpu=0.25, p99=200.0)


@pytest.mark.parametrize(
    ("measurement", "expected"),
    [
        (THROUGHPUT, "/rr cpu iperf3 --json --affinity 1,0 --time 7 --parallel 8 --client 192.0.2.1"),
        (LATENCY, "/rr on 1 udp 192.0.2.1 5300 5"),
        (replace(LATENCY, client=Client.PYTHON), "/rr on 1 cpu python3 /ordinary.py udp 192.0.2.1 5301 5"),
    ],
)
def test_the_commands_name_the_address_and_how_long(measurement: Measurement, expected: str) -> None:
    argv = command(measurement, "192.0.2.1", rr="/rr", python="/ordinary.py", seconds=7, requests=5)
    assert " ".join(argv) == expected


def test_every_measurement_has_an_address_on_every_path_and_a_name_of_its_own() -> None:
    found = [
        item | {"status": {"podIP": item["metadata"]["name"]}, "spec": {"clusterIP": "of the Service"}}
        for item in objects()["items"]
    ]
    known = addresses(Plan(hosts=3), found)
    assert known.keys() >= {(path, measurement.target) for path in NetworkPath for measurement in MEASUREMENTS}
    assert len({known[path, Target.HOST] for path in NetworkPath}) == 1
    assert len({measurement.name for measurement in MEASUREMENTS}) == len(MEASUREMENTS)


def test_only_the_pods_of_the_general_path_opt_out_of_native_sockets() -> None:
    pods = [item["metadata"] for item in objects()["items"] if item["kind"] == "Pod"]
    opted_out = {pod["name"] for pod in pods if pod["annotations"] == {"pinnace.dev/native-sockets": "false"}}
    assert opted_out == {pod["name"] for pod in pods if pod["name"].endswith("-general")}
    assert 2 * len(opted_out) == len(pods)


@pytest.fixture(scope="module")
def rr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rr") / "rr"
    compile_rr(path)
    return path


@pytest.mark.parametrize(("server", "mode"), [("serve-tcp", "tcp"), ("serve-tcp", "connect"), ("serve-udp", "udp")])
def test_rr_measures_what_its_server_answers(rr: Path, server: str, mode: str) -> None:
    assert times_of([str(rr)], server, mode)["cpu_seconds"] >= 0


@pytest.mark.parametrize("mode", ["tcp", "connect", "udp"])
def test_ordinary_programs_measure_what_their_server_answers(mode: str) -> None:
    times_of([sys.executable, ordinary.__file__], "serve", mode)


def times_of(program: list[str], server: str, mode: str) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    argv = [*program, mode, "127.0.0.1", port, "50"]
    with subprocess.Popen([*program, server, port]) as process:
        try:
            deadline = time.monotonic() + 10
            while (result := subprocess.run(argv, capture_output=True, check=False, timeout=30)).returncode:
                assert time.monotonic() < deadline, result.stderr
        finally:
            process.terminate()
    times: dict[str, float] = json.loads(result.stdout)
    assert 0 < times["median"] <= times["p99"]
    assert subprocess.run(argv, capture_output=True, check=False, timeout=30).returncode  # nobody answers now
    return times


def test_rr_prints_the_cpu_time_after_the_output_of_a_command(rr: Path) -> None:
    result = subprocess.run([str(rr), "cpu", "echo", "{}"], capture_output=True, text=True, check=True, timeout=30)
    first, second = map(json.loads, result.stdout.splitlines())
    assert not first
    assert second.keys() == {"cpu_seconds"}
    assert subprocess.run([str(rr), "cpu", "false"], capture_output=True, check=False, timeout=30).returncode == 1
