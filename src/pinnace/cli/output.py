"""What commands print: data on stdout, messages and progress on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Table = tuple[str, Sequence[dict[str, Any]], Sequence[str]]  # name, rows, columns

Command = TypeVar("Command", bound="Callable[..., object]")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class OutputFormat(StrEnum):
    """What ``-o`` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def output_option(command: Command) -> Command:
    """The ``-o`` option, the same for every command that shows data."""
    choice = click.Choice(OutputFormat, case_sensitive=False)
    return click.option("-o", "--output", type=choice, default=OutputFormat.TABLE, help="How to print it.")(command)


def show(rows: Sequence[dict[str, Any]], output: OutputFormat, *, columns: Sequence[str]) -> None:
    """Print rows on stdout. The table shows ``columns``; JSON and YAML have everything."""
    if output is OutputFormat.JSON:
        click.echo(json.dumps(rows, indent=2))
    elif output is OutputFormat.YAML:
        click.echo(yaml.safe_dump(list(rows), sort_keys=False), nl=False)
    elif output is OutputFormat.NAME:
        for row in rows:
            click.echo(row["name"])
    else:
        table = [[column.upper() for column in columns], *([str(row[column]) for column in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo("   ".join(cells).rstrip())


def show_one(about: dict[str, Any], output: OutputFormat, *, tables: Sequence[Table]) -> None:
    """Print one thing on stdout: a line per field, then tables of its parts. JSON and YAML have it in one object."""
    whole = about | {name: list(rows) for name, rows, _ in tables}
    if output is OutputFormat.JSON:
        click.echo(json.dumps(whole, indent=2))
    elif output is OutputFormat.YAML:
        click.echo(yaml.safe_dump(whole, sort_keys=False), nl=False)
    elif output is OutputFormat.NAME:
        click.echo(about["name"])
    else:
        width = max(map(len, about)) + 3
        for field, value in about.items():
            if value not in {"", "-"}:
                click.echo(f"{field.upper():{width}}{value}")
        for _, rows, columns in tables:
            if rows:
                click.echo()
                show(rows, output, columns=columns)


def fail(message: str, *, hint: str = "") -> None:
    """Say what went wrong and what to do about it."""
    click.echo(f"{painted('✗', 'red')} {message}", err=True)
    if hint:
        click.echo(hint, err=True)


def show_output(line: str) -> None:
    """Print a line of a workload's output. If nobody reads on, as after `| head`, the workload goes on all the same."""
    try:
        click.echo(line)
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # Python itself would fail when it flushes at its end
        os.close(null)


def painted(text: str, colour: str) -> str:
    """Text in a colour, unless NO_COLOR is set."""
    return text if "NO_COLOR" in os.environ else click.style(text, fg=colour)


def _joined(label: str, text: str) -> str:
    return f"{label}: {text}" if label else text


class Progress:
    """Shows steps: a moving line on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._frame = 0
        self._last = 0.0

    def step(self, label: str, text: str) -> None:
        if self._terminal:
            self._last = 0.0
            self.progress(label, text)
        else:
            click.echo(f"  {_joined(label, text)}", err=True)

    def progress(self, label: str, text: str) -> None:
        if not self._terminal or time.monotonic() - self._last < 0.08:
            return
        self._last = time.monotonic()
        self._frame = (self._frame + 1) % len(SPINNER)
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        line = f"{SPINNER[self._frame]} {_joined(label, text)}"
        click.echo(f"\r\x1b[K{line[: width - 1]}", nl=False, err=True)

    def done(self, label: str, text: str) -> None:
        self._line("✓", "green", label, text)

    def note(self, label: str, text: str) -> None:
        self._line("!", "yellow", label, text)

    def _line(self, mark: str, colour: str, label: str, text: str) -> None:
        self.clear()
        click.echo(f"{painted(mark, colour)} {_joined(label, text)}", err=True)

    def clear(self) -> None:
        """Remove the moving line."""
        if self._terminal:
            click.echo("\r\x1b[K", nl=False, err=True)


class Step:
    """A step that is under way."""

    def __init__(self, progress: Progress, text: str) -> None:
        self._progress = progress
        self.text = text

    def say(self, text: str) -> None:
        """What it waits for right now."""
        self._progress.step("", text)


class Steps:
    """A line per step with a check mark and the time that it took."""

    def __init__(self) -> None:
        self._progress = Progress()

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Step]:
        begin = time.monotonic()
        step = Step(self._progress, text)
        try:
            yield step
        except BaseException:
            self._progress.clear()
            raise
        self._progress.done("", f"{step.text} ({time.monotonic() - begin:.1f} s)")
