"""Sizes as they are asked for, and as they are shown: tables, series, the plot, the report."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.bench import report
from pinnace.bench.growth import plot, results
from pinnace.bench.growth.directory import Growth
from pinnace.bench.growth.results import Size
from pinnace.bench.growth.sizes import DEFAULT_SIZES, parse_sizes
from pinnace.errors import BenchError
from support.bench_samples import HOST, run_at, samples
from support.growth_samples import measured, sample

if TYPE_CHECKING:
    from pathlib import Path

SIZES = measured(sample(10, 100), sample(100, 1000, pod_start_p99=5.01))
GROWTH = Growth(
    conditions={
        "begin": 1e9,
        "options": {"partition": "<main>", "exclusive": None},
        "sizes": ["10:100", "100:1000", "500:5000"],
        "versions": {"pinnace": "1", "kwok": "0.8.0"},
        "machine": HOST,
    },
    sizes=SIZES,
)


def size(**figures: float | None) -> Size:
    return Size(figures=figures, raw={"sample": {}})


def test_sizes_are_nodes_and_pods() -> None:
    assert parse_sizes(" 10:100, 10:200,") == ((10, 100), (10, 200))
    assert ",".join(map(str, parse_sizes(DEFAULT_SIZES))) == DEFAULT_SIZES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10", "'10' is no size"),
        ("10:", "'10:' is no size"),
        ("ten:100", "'ten:100' is no size"),
        ("0:100", "'0:100' is no size"),
        ("-1:100", "'-1:100' is no size"),
        ("100:10,10:100", "10:100 comes after 100:10"),
        ("10:100,20:100", "20:100 comes after 10:100"),
        ("1:200", "1:200 does not fit: a node takes 250 pods, and 150 more"),
        (" ,", "there is no size"),
    ],
)
def test_sizes_that_are_none_or_do_not_grow_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sizes(text)


def test_the_table_says_which_objectives_were_missed() -> None:
    found = [size(nodes=10, pod_start_p99=0.4), size(nodes=500, pod_start_p99=5.01, api_single_p99=1.2, etcd_mib=70)]
    text = results.text(found).splitlines()
    assert text[0].endswith(" objectives")
    assert text[1].endswith(" met")
    assert text[2].endswith(" missed: pod start p99; API p99, one object")
    assert "scheduler" not in text[0], "nobody measured it"
    assert results.markdown(found).splitlines()[1].startswith("| ---: |")


def test_the_table_of_a_client_has_what_the_api_server_takes_for_a_pod() -> None:
    header, first, _ = results.cells(SIZES)
    row = dict(zip(header, first, strict=True))
    assert row["API server (MiB)"] == "363"
    assert row["API server (CPU ms per pod)"] == "20"
    assert row["pods per second"] == "30"


def test_series_can_be_drawn() -> None:
    parts = {"simulated": [size(nodes=10, pods=100, pods_per_second=50), size(nodes=100, pods=1000, etcd_mib=60)]}
    document: dict[str, Any] = json.loads(json.dumps(results.as_json(parts, cpus=2)))
    drawn = document["parts"]["simulated"]["series"]["nodes"]
    assert drawn["pods_per_second"] == [[10, 50]]
    assert drawn["etcd_mib"] == [[100, 60]]
    assert drawn["pods"] == [[10, 100], [100, 1000]]
    assert results.sizes_from(document, "simulated") == parts["simulated"]


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    drawn = plot.draw(SIZES, tmp_path / "plots")
    assert [path.name for path in drawn] == ["7-growth.png", "7-growth.svg"]
    shown = " ".join(ET.parse(drawn[1]).getroot().itertext())  # noqa: S314 - our own
    for words in ("Pods per second", "objective: 5 s", "1,000 pods", "100 nodes"):
        assert words in shown
    plot.draw(measured(sample(1, 20)), tmp_path / "plots")  # a single size is a plot too


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BenchError, match="matplotlib is not installed"):
        plot.draw(SIZES, tmp_path / "plots")


def parsed(text: str) -> str:
    return " ".join(ET.fromstring(text.replace("<!DOCTYPE html>\n", "")).itertext())  # noqa: S314 - our own


def test_the_report_of_a_run_has_a_section_about_growth(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", samples())
    drawn = plot.draw(SIZES, run.path / "plots")
    text = report.html(run, drawn, GROWTH)
    shown = parsed(text)
    assert "Growth" in shown
    assert "missed: pod start p99" in shown
    assert "Not measured: 500:5000" in shown
    assert "--partition=<main> --exclusive" in shown
    assert text.count("data:image/svg+xml;base64,") == 1
    assert "Growth" not in parsed(report.html(run))


def test_growth_alone_has_a_report(tmp_path: Path) -> None:
    drawn = plot.draw(SIZES, tmp_path / "plots")
    text = report.growth_html(GROWTH, drawn)
    assert "1,000" in parsed(text)
    assert text.count("data:image/svg+xml;base64,") == 1
    assert "2001-09-09" in parsed(report.growth_html(Growth(conditions={"begin": 1e9}, sizes=SIZES)))
