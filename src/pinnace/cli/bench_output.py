"""What `pinnace bench` says while it measures, and the files and tables that it makes from what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pinnace.bench import plots, report, results, table
from pinnace.bench.growth import plot as growth_plot
from pinnace.bench.growth import results as growth_results
from pinnace.bench.growth.directory import read_growth
from pinnace.bench.run_directory import PLOTS, REPORT
from pinnace.cli.output import Progress, fail
from pinnace.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.bench.growth.directory import Growth
    from pinnace.bench.run_directory import RunDirectory


class Lines:
    """A line for each sample; on a terminal also one that says what is being measured."""

    def __init__(self) -> None:
        self._progress = Progress()

    def begin(self, text: str) -> None:
        self._progress.progress("", text)

    def done(self, text: str) -> None:
        self._progress.done("", text)

    def failed(self, text: str, hint: str = "") -> None:
        self._progress.clear()
        fail(text, hint=hint)


def write(run: RunDirectory) -> Growth | None:
    """All files that are made from the samples of a run, and from the growth in its directory, which it gives."""
    results.write(run)
    growth = _growth_of(run.path)
    drawn: list[Path] = []
    try:
        drawn = plots.draw(results.results_of(run.samples()), run.path / PLOTS)
        drawn += growth_plot.draw(growth.sizes, run.path / PLOTS) if growth else []
    except BenchError as error:
        _note(error, run.path)
    (run.path / REPORT).write_text(report.html(run, drawn, growth))
    return growth


def write_growth(growth: Growth, directory: Path) -> None:
    """All files that are made from a growth whose directory is not that of a run."""
    drawn: list[Path] = []
    try:
        drawn = growth_plot.draw(growth.sizes, directory / PLOTS)
    except BenchError as error:
        _note(error, directory)
    (directory / REPORT).write_text(report.growth_html(growth, drawn))


def _growth_of(directory: Path) -> Growth | None:
    """A run is worth its report also if the growth beside it is not readable."""
    try:
        return read_growth(directory)
    except BenchError as error:
        _note(error, directory)
        return None


def _note(error: BenchError, directory: Path) -> None:
    Progress().note("", f"{error.message}. {error.hint.replace('DIR', str(directory))}")


def show(run: RunDirectory) -> None:
    found = results.results_of(run.samples())
    click.echo(table.text(table.cells(found), table.LEFT))
    errors = results.errors_of(run.samples())
    if errors:
        click.echo(f"{len(errors)} not measured; try them again with `pinnace bench --resume {run.path}`.", err=True)
    show_report(run.path)


def show_growth(growth: Growth, *, markdown: bool = False) -> None:
    click.echo(growth_results.markdown(growth.sizes) if markdown else growth_results.text(growth.sizes))


def show_report(directory: Path) -> None:
    click.echo(f"All figures, and a report to send on: {directory / REPORT}", err=True)
