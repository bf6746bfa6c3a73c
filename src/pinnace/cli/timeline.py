"""The command ``pinnace timeline``, and the option ``--timeline`` of others: when each step happened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinnace.cli.naming import pick
from pinnace.cli.options import name_argument
from pinnace.cli.output import OutputFormat, fail, output_option, show_one
from pinnace.errors import ClusterError, SlurmError, UsageError
from pinnace.slurm.commands import Slurm
from pinnace.timeline.recorder import DIRECTORY, MarkEvent, StepName, process_began
from pinnace.timeline.rendering import as_svg, as_text
from pinnace.timeline.timeline import Timeline, read_timeline

if TYPE_CHECKING:
    from pinnace.cluster.cluster import Cluster

timeline_option = click.option(
    "--timeline",
    "show_timeline",
    is_flag=True,
    help="Print when each step began and ended, and save that as JSON and as a picture (SVG).",
)


def mark_command(cluster: Cluster) -> None:
    """The time from the command's beginning until now was for loading it."""
    cluster.timeline.mark(StepName.COMMAND, MarkEvent.BEGIN, at=process_began())
    cluster.timeline.mark(StepName.COMMAND, MarkEvent.END)


def standing(cluster: Cluster) -> list[str]:
    """The nodes that a cluster began with. Those that have joined can be thousands."""
    records = (cluster.directory.node(index) for index in range(cluster.nodes))
    return [record.name for record in records if record]


def report(cluster: Cluster, directory: Path | None = None) -> None:
    """Print a timeline on stderr, and save it: in the cluster's directory, or in another.

    That it cannot be saved is said, and changes nothing for what it is about.
    """
    timeline = read_timeline(cluster.directory.path, standing(cluster))
    click.echo(rendered(timeline), err=True)
    stem = directory / f"timeline-{cluster.name}" if directory else cluster.directory.path / DIRECTORY / "timeline"
    try:
        click.echo(f"Saved as {' and '.join(map(str, save(timeline, stem)))}.", err=True)
    except OSError as error:
        fail(f"the timeline cannot be saved: {error}", hint="Choose another --output-dir." if directory else "")


def rendered(timeline: Timeline) -> str:
    return as_text(timeline, width=shutil.get_terminal_size((110, 24)).columns)


def save(timeline: Timeline, stem: Path) -> list[Path]:
    """Write ``stem``.json and ``stem``.svg."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    data, picture = stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.svg")
    data.write_text(json.dumps(timeline.to_json(), indent=1))
    picture.write_text(as_svg(timeline))
    return [data, picture]


@click.command()
@name_argument
@click.option("--node", metavar="NODE", help="Only this node; also one that has joined, such as job-17.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a picture here.")
@output_option
def timeline(name: str | None, node: str | None, svg: Path | None, output: OutputFormat) -> None:
    """Show when each step of a cluster's start and end happened, on the login node and on every node.

    It works for clusters that start, run, or have failed, and for those that have ended if they were started with
    --retain.
    """
    cluster = pick(name)
    path = cluster.directory.path
    if node:
        found = read_timeline(path, [node]).only(node)
        if not found.steps:
            raise UsageError(f"nothing was recorded by a node {node!r}", hint="See `pinnace kubectl get nodes`.")
    else:
        found = read_timeline(path, standing(cluster))
        if not found.steps:
            raise ClusterError(f"nothing was recorded of the cluster {cluster.name}")
        save(found, path / DIRECTORY / "timeline")
    if svg:
        svg.write_text(as_svg(found))
    if output in {OutputFormat.JSON, OutputFormat.YAML}:
        show_one(found.to_json(), output, tables=())
    elif output is OutputFormat.NAME:
        click.echo(found.cluster)
    else:
        click.echo(rendered(found))
        if delay := scheduler_delay(cluster):
            click.echo(f"\n{delay}")


def scheduler_delay(cluster: Cluster) -> str:
    """What Slurm's own delay can be, for a cluster in a batch job."""
    record = cluster.directory.job_record
    if not record or record.job is None:
        return ""
    try:
        seconds = Slurm().batch_sched_delay()
    except SlurmError:
        return ""
    return f"This Slurm looks at new batch jobs after up to {seconds} s (batch_sched_delay): part of its queue."
