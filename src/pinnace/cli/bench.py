"""The command ``pinnace bench``: bare Slurm and pinnace measured in turn, on the user's own site."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from pinnace.bench import compare as comparison
from pinnace.bench import results, table
from pinnace.bench.growth.directory import read_growth
from pinnace.bench.measurements import FULL, QUICK, TASKS, Group, Model
from pinnace.bench.run_directory import ABOUT, RunDirectory, Settings, directory_name
from pinnace.bench.runner import Runner
from pinnace.bench.tools import IMAGE
from pinnace.cli.bench_output import Lines, show, show_growth, show_report, write, write_growth
from pinnace.cli.durations import Duration
from pinnace.cli.growth import growth
from pinnace.cli.interruption import postponed
from pinnace.cli.output import fail
from pinnace.cli.slurm_options import given_options, node_count, slurm_options, with_memory
from pinnace.cluster.directory import home, load_image
from pinnace.errors import PinnaceError, UsageError
from pinnace.slurm.sizes import parse_mebibytes

REPEAT, QUICK_REPEAT = 10, 3
NODES = 2
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


class Names(click.ParamType[tuple[str, ...]]):
    """Names out of a list, separated by commas."""

    name = "LIST"

    def __init__(self, known: list[str]) -> None:
        self._known = tuple(dict.fromkeys(known))  # a group may be named as a measurement in it

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(word.strip() for word in str(value).split(",") if word.strip())
        unknown = [name for name in names if name not in self._known]
        if unknown or not names:
            self.fail(f"{', '.join(unknown) or 'nothing'} is none of {', '.join(self._known)}", param, ctx)
        return names


GROUPS = [str(group) for group in Group]
MODELS = [str(model) for model in Model if model is not Model.BARE]


@click.group(invoke_without_command=True)
@slurm_options
@click.option("--repeat", type=click.IntRange(1), help=f"Rounds. Default: {REPEAT}, with --quick {QUICK_REPEAT}.")
@click.option("--quick", is_flag=True, help="Short measurements: to try it, not to publish.")
@click.option(
    "--only",
    type=Names([*GROUPS, *(task.name for task in TASKS)]),
    default=None,
    metavar="LIST",
    help=f"Only these groups, separated by commas: {', '.join(GROUPS)}; or single measurements.",
)
@click.option(
    "--models",
    type=Names(MODELS),
    default=None,
    metavar="LIST",
    help=f"Only these models, beside bare Slurm: {', '.join(MODELS)}.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Image to load first, as `pinnace image load` does (repeat).",
)
@click.option("--image-name", default=IMAGE, show_default=True, metavar="NAME", help="The image with the tools.")
@click.option("--startup-image", metavar="NAME", help="Measure the start-up with this one instead.")
@click.option("--fio-size", metavar="SIZE", help="Size of fio's file. Default: 1G, with --quick 64M.")
@click.option(
    "--settle",
    type=Duration(),
    metavar="DURATION",
    help=f"Pause between a cluster's start and its measurements. Default: {FULL.settle_seconds:.0f}s.",
)
@click.option(
    "--directory", type=DIRECTORY, help="Measure the shared file system here. Default: the directory of pinnace."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where results go. Default: pinnace-bench-TIME in this directory.",
)
@click.option("--resume", type=DIRECTORY, metavar="DIR", help="Go on with a run that was interrupted.")
@click.option(
    "--wait-limit",
    type=Duration(),
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Give up on a model in a round if Slurm has not given hosts by then.",
)
@click.pass_context
def bench(
    context: click.Context,
    *,
    repeat: int | None,
    quick: bool,
    only: tuple[str, ...] | None,
    models: tuple[str, ...] | None,
    images: tuple[Path, ...],
    image_name: str,
    startup_image: str | None,
    fio_size: str | None,
    settle: float | None,
    directory: Path | None,
    output: Path | None,
    resume: Path | None,
    wait_limit: float,
) -> None:
    """Measure bare Slurm and pinnace in turn, and write a report.

    Start-up, CPU, memory, storage, network and the cluster itself, on hosts of your own site. Without options it takes
    two nodes and some hours; --quick and --only make it shorter. Ctrl-C keeps what was measured.
    """
    if context.invoked_subcommand:
        check_subcommand(context, context.invoked_subcommand)
        return
    if "SLURM_JOB_ID" in os.environ:
        raise UsageError(
            "this is inside a Slurm job, and bare Slurm is measured by jobs of its own",
            hint="Run `pinnace bench` on a login node.",
        )
    if resume:
        check_resumed(context)
        run = RunDirectory.existing(resume)
        if repeat:
            run.update(settings=replace(run.settings, repeat=repeat).to_json())
    else:
        for file in images:
            load_image(file)
        parameters = QUICK if quick else FULL
        if fio_size:
            parameters = replace(parameters, fio_mib=mebibytes(fio_size))
        if settle is not None:
            parameters = replace(parameters, settle_seconds=settle)
        identifier = secrets.token_hex(3)
        settings = Settings(
            options=with_memory(given_options(context), os.environ),
            nodes=node_count(context) if "nodes" in given_options(context) else NODES,
            repeat=repeat or (QUICK_REPEAT if quick else REPEAT),
            models=(Model.BARE, *(Model(name) for name in models or MODELS)),
            only=only or (),
            parameters=parameters,
            image=image_name,
            startup_image=startup_image or image_name,
            directory=str((directory or home() / "bench").absolute() / directory_name(identifier)),
            identifier=identifier,
        )
        run = RunDirectory.create(output or Path(time.strftime("pinnace-bench-%Y%m%d-%H%M%S")), settings)
    measure(run, wait_limit)


def given_names(context: click.Context) -> list[str]:
    """The options of a run that are on the command line."""
    sources = {option.opts[0]: context.get_parameter_source(option.name or "") for option in context.command.params}
    return [name for name, source in sources.items() if source is ParameterSource.COMMANDLINE]


def check_subcommand(context: click.Context, name: str) -> None:
    """Options of a run would have no effect."""
    given = given_names(context)
    if given:
        raise UsageError(
            f"{', '.join(given)} before `{name}` would be of a run of `pinnace bench`",
            hint=f"Give the options of `{name}` after it: `pinnace bench {name} --help` lists them.",
        )


def check_resumed(context: click.Context) -> None:
    """A run goes on as it began, perhaps for more rounds."""
    given = [name for name in given_names(context) if name not in {"--resume", "--repeat", "--wait-limit"}]
    if given:
        raise UsageError(
            f"a run that is resumed goes on as it began: it is too late for {', '.join(given)}",
            hint="Only --repeat and --wait-limit can be changed.",
        )


def measure(run: RunDirectory, wait_limit: float) -> None:
    """Run it, and write everything that can be said of it, also if it is interrupted."""
    try:
        Runner(run=run, listener=Lines(), ending=postponed, wait_limit=wait_limit).execute()
    except (KeyboardInterrupt, SystemExit, PinnaceError) as error:
        if not run.samples():
            run.discard()
            raise
        write(run)
        what = "stopped" if isinstance(error, PinnaceError) else "interrupted"
        fail(f"{what}: what was measured is kept", hint=f"Go on with `pinnace bench --resume {run.path}`.")
        raise
    write(run)
    show(run)
    if results.errors_of(run.samples()):
        sys.exit(1)


def mebibytes(text: str) -> int:
    try:
        return max(1, parse_mebibytes(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no size, such as 512M", param_hint="--fio-size") from None


@bench.command(name="report")
@click.argument("directory", type=DIRECTORY, metavar="DIR")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def report_command(*, directory: Path, markdown: bool) -> None:
    """Write the files of a run again, or of a measurement of growth, and print its table."""
    alone = None if (directory / ABOUT).exists() else read_growth(directory)
    if alone:
        write_growth(alone, directory)
        show_growth(alone, markdown=markdown)
        show_report(directory)
        return
    run = RunDirectory.existing(directory)
    found = write(run)
    if markdown:
        click.echo(table.markdown(table.cells(results.results_of(run.samples())), table.LEFT))
    else:
        show(run)
    if found:
        click.echo()
        show_growth(found, markdown=markdown)


bench.add_command(growth)


@bench.command(name="compare")
@click.argument("before", type=DIRECTORY, metavar="A")
@click.argument("after", type=DIRECTORY, metavar="B")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="How to print it.")
@click.option("--all", "every", is_flag=True, help="Also show what is within noise.")
def compare_command(*, before: Path, after: Path, form: str, every: bool) -> None:
    """Say what changed from run A to run B, and whether it is more than noise.

    A change has p < 0.01 in a Mann-Whitney U test of the samples, and is 1 % of the median at least. Medians of B as
    ratios to A, with a bootstrap interval of 95 %.
    """
    runs = RunDirectory.existing(before), RunDirectory.existing(after)
    changes = comparison.compare(*(run.samples() for run in runs))
    if form == "json":
        click.echo(json.dumps(comparison.as_json(changes), indent=2))
        return
    for line in comparison.differences(*runs):
        click.echo(f"! {line}", err=True)
    quiet = {comparison.Verdict.NOISE}
    shown = [found for found in changes if every or found.verdict not in quiet]
    if shown:
        click.echo(table.text(comparison.cells(shown), comparison.LEFT))
    click.echo(f"{len(changes)} compared, {sum(found.verdict in quiet for found in changes)} within noise.", err=True)
