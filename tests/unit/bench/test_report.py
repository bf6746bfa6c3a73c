"""The report, the plots and the tables: each value is in them, and the report stands on its own."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from pinnace.bench import plots, report, table
from pinnace.bench.measurements import Model
from pinnace.bench.published import PUBLISHED
from pinnace.bench.results import results_of
from pinnace.bench.run_directory import Sample
from pinnace.bench.table import number
from pinnace.errors import BenchError
from support.bench_samples import run_at, samples

if TYPE_CHECKING:
    from pathlib import Path


def parsed(text: str) -> ET.Element:
    """The page as XML: it is written so that both kinds of parsers accept it."""
    return ET.fromstring(text.replace("<!DOCTYPE html>\n", ""))  # noqa: S314 - our own


def test_the_report_is_well_formed_and_has_each_value(tmp_path: Path) -> None:
    failed = Sample(round=6, model=Model.OVER, task="cpu", error="the host <n1> vanished")
    run = run_at(tmp_path / "run", [*samples(), failed])
    root = parsed(report.html(run))
    shown = " ".join(root.itertext())
    for result in results_of(run.samples()):
        assert number(result.summary.median) in shown
        assert result.figure.title in shown
        assert result.ratio is None or f"{result.ratio:.3f}" in shown
    for name in ("cpu", "startup", "tcp-rr"):
        assert all(number(value) in shown for value in PUBLISHED[name].values())
    assert shown.count("(published)") == 4 * 4  # cpu, startup, fio on a hostPath, tcp-rr
    assert "the host <n1> vanished" in shown
    assert "A <processor>" in shown
    assert "1<2" in shown


def test_the_report_loads_nothing(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", samples())
    drawn = plots.draw(results_of(run.samples()), run.path / "plots")
    text = report.html(run, drawn)
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(sources) == 4
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert "<script" not in text
    assert "url(" not in text


def test_a_run_without_samples_has_a_report(tmp_path: Path) -> None:
    assert "bare Slurm" in " ".join(parsed(report.html(run_at(tmp_path / "run"))).itertext())


def test_plots_are_drawn_in_the_papers_order(tmp_path: Path) -> None:
    drawn = plots.draw(results_of(samples()), tmp_path / "plots")
    assert [path.name for path in drawn] == [
        f"{name}.{suffix}" for name in ("1-startup", "2-cpu", "4-fio", "5-network") for suffix in ("png", "svg")
    ]
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert drawn[0].read_bytes().startswith(b"\x89PNG")
    ET.parse(drawn[1])  # noqa: S314 - our own


def test_bars_of_others_are_marked_as_published() -> None:
    [(_, bars)] = plots.rows_of([result for result in results_of(samples()) if result.figure.name == "cpu"])
    assert [bar.label for bar in bars] == [
        "cluster in a job", "KSI (published)", "HPK (published)", "Bridge Operator (published)",
    ]  # fmt: skip
    assert [bar.published for bar in bars] == [False, True, True, True]


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BenchError, match="matplotlib is not installed") as error:
        plots.draw(results_of(samples()), tmp_path / "plots")
    assert "pinnace[bench]" in error.value.hint


def test_the_table_has_medians_quartiles_and_ratios() -> None:
    rows = table.cells(results_of(samples()))
    cpu = next(row for row in rows if row[1] == "cluster in a job" and row[4] == "events/s")
    assert cpu[2:7] == ("998.0", "996.0..1,001", "events/s", "5", "0.998")
    assert cpu[8] == "KSI 0.966"
    lines = table.text(rows, table.LEFT).splitlines()
    assert len(lines) == len(rows)
    assert table.markdown(rows, table.LEFT).splitlines()[1].startswith("| --- | --- | ---: |")
