"""``make conformance``: build what is missing, run the suite on a bed of its own, print what came out."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

import click

from conformance.report import exit_code, read_results, table
from conformance.running import STATE, Choice, Runner
from conformance.suite import check_images, ensure_suite, suite
from pinnace.cli.output import Progress
from pinnace.components.manifest import architecture
from pinnace.errors import PinnaceError
from testbed import Bed
from testbed.errors import BedError
from testbed.images.conformance import RECIPES
from testbed.plan import Plan

PROJECT = Path(__file__).parents[1]
JUNIT = "junit_01.xml"
BEGIN = time.monotonic()


def say(text: str) -> None:
    click.echo(f"[{(time.monotonic() - BEGIN) / 60:6.1f} min] {text}")
    sys.stdout.flush()


@click.command()
@click.option("--focus", default="", metavar="REGEX", help="Only tests whose name matches.")
@click.option("--skip", default="", metavar="REGEX", help="No tests whose name matches.")
@click.option("--part", type=click.Choice(["parallel", "serial"]), help="Only this part; both without.")
@click.option("--processes", default=4, show_default=True, help="Processes of the parallel part.")
@click.option("--nodes", default=2, show_default=True, help="Nodes of the cluster.")
@click.option("--hours", default=6, show_default=True, help="Limit of time for each part.")
@click.option(
    "--output",
    default=PROJECT / "build" / "conformance",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the logs and the JUnit files go.",
)
def main(*, focus: str, skip: str, part: str | None, processes: int, nodes: int, hours: int, output: Path) -> None:
    """Run upstream's conformance tests on a cluster of pinnace, and print what failed and why."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    choice = Choice(focus=focus, skip=skip, processes=processes)
    shutil.rmtree(output, ignore_errors=True)
    parts = [one for one in choice.parts if part in {None, one.name}]
    try:
        check_images(ensure_suite(Progress()), RECIPES.values())
        say(f"a bed of {nodes} hosts")
        bed = Bed.up(Plan(hosts=nodes, fast=True), STATE)
        try:
            runner = Runner(bed=bed, nodes=nodes, say=say)
            runner.prepare(PROJECT)
            for one in parts:
                try:
                    phase = runner.run(one, choice, version=suite().version, arch=architecture(), hours=hours)
                    say(f"{one.name} part: {phase}")
                finally:
                    shutil.copytree(runner.results, output, dirs_exist_ok=True)
            runner.end()
        finally:
            bed.down()
    except (BedError, PinnaceError) as error:
        raise click.ClickException(f"{error.message}\n{error.hint}".strip()) from error
    unfinished = [one.name for one in parts if not (output / one.name / JUNIT).exists()]
    results = [
        result for one in parts if one.name not in unfinished for result in read_results(output / one.name / JUNIT)
    ]
    click.echo(table(results))
    click.echo(f"logs and JUnit files: {output}")
    for name in unfinished:
        click.echo(f"the {name} part came to no end: see {output / name}.log", err=True)
    sys.exit(1 if unfinished else exit_code(results))


if __name__ == "__main__":
    main()
