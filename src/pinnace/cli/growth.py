"""The command ``pinnace bench growth``: a cluster with ever more simulated nodes and pods."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from functools import partial
from pathlib import Path

import click

from pinnace.bench.growth.directory import GrowthDirectory
from pinnace.bench.growth.kwok import KWOK, find_kwok
from pinnace.bench.growth.runner import GrowthRunner
from pinnace.bench.growth.session import describe_cluster, growth_session
from pinnace.bench.growth.sizes import DEFAULT_SIZES, NodesAndPods, parse_sizes
from pinnace.bench.preparation import versions
from pinnace.bench.run_directory import GROWTH, RunDirectory
from pinnace.cli.bench_output import Lines, show_growth, show_report, write, write_growth
from pinnace.cli.durations import Duration
from pinnace.cli.interruption import postponed
from pinnace.cli.output import fail
from pinnace.cli.slurm_options import given_options, node_count, slurm_options, with_memory
from pinnace.components.manifest import manifest
from pinnace.errors import BenchError, PinnaceError, UsageError

MEMORY = "7000M"  # of each node: enough for a control plane with 5,000 pods


class Sizes(click.ParamType[tuple[NodesAndPods, ...]]):
    """Sizes of a cluster that grows, separated by commas."""

    name = "NODES:PODS,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[NodesAndPods, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_sizes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@slurm_options
@click.option(
    "--sizes",
    type=Sizes(),
    default=DEFAULT_SIZES,
    show_default=True,
    help="Simulated nodes and the pods on them, each size larger than the one before.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where results go: a new directory, or that of a run of `pinnace bench`. "
    "Default: pinnace-growth-TIME in this directory.",
)
@click.option(
    "--wait-limit",
    type=Duration(),
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Give up if the cluster is not ready by then.",
)
@click.pass_context
def growth(context: click.Context, *, sizes: tuple[NodesAndPods, ...], output: Path | None, wait_limit: float) -> None:
    """Measure how the control plane grows, with simulated nodes.

    Starts a cluster in a job, of one node unless -N says more, and adds nodes that kwok simulates, and pods for them.
    At each size it tells how fast pods start, how fast the API answers and what the API server takes, and whether
    Kubernetes' own objectives are met. Ctrl-C keeps the sizes that were measured.
    """
    if "SLURM_JOB_ID" in os.environ:
        raise UsageError(
            "this is inside a Slurm job, and the cluster that is measured has a job of its own",
            hint="Run `pinnace bench growth` on a login node.",
        )
    if not shutil.which("srun"):
        raise BenchError("there is no `srun` here", hint="Run `pinnace bench growth` on a login node.")
    program = find_kwok()
    options, nodes = with_memory(given_options(context), os.environ, MEMORY), node_count(context)
    cluster = describe_cluster(secrets.token_hex(3), nodes, options)
    conditions = {
        "begin": time.time(),
        "options": options,
        "nodes": nodes,
        "sizes": [str(size) for size in sizes],
        "versions": versions() | {KWOK: manifest()[KWOK].version},
    }
    directory = GrowthDirectory.create(output or Path(time.strftime("pinnace-growth-%Y%m%d-%H%M%S")))
    opened = partial(growth_session, cluster, program, postponed, limit=wait_limit)
    measure(GrowthRunner(directory=directory, sizes=sizes, opened=opened, listener=Lines(), conditions=conditions))


def measure(runner: GrowthRunner) -> None:
    """Run it, and write everything that can be said of it, also if it is interrupted."""
    directory = runner.directory
    try:
        runner.execute()
    except (KeyboardInterrupt, SystemExit, PinnaceError) as error:
        if not runner.growth.sizes:
            directory.discard()
            raise
        write_files(runner)
        what = "stopped" if isinstance(error, PinnaceError) else "interrupted"
        missing = ", ".join(map(str, runner.missing))
        kept = f"what was measured is in {directory.path / GROWTH}"
        fail(
            f"{what}: {kept}; missing: {missing or 'nothing'}",
            hint=f"`pinnace bench report {directory.path}` prints the table. Measure the rest with --sizes and another "
            "--output.",
        )
        raise
    write_files(runner)
    show_growth(runner.growth)
    show_report(directory.path)


def write_files(runner: GrowthRunner) -> None:
    if runner.directory.is_run:
        write(RunDirectory.existing(runner.directory.path))
    else:
        write_growth(runner.growth, runner.directory.path)
