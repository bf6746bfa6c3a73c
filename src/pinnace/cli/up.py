"""The commands ``pinnace up`` and ``pinnace down``: a cluster that stays."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pinnace.cli.interruption import uninterrupted
from pinnace.cli.naming import pick
from pinnace.cli.options import (
    cluster_options,
    dry_run_option,
    name_argument,
    retain_option,
    wait_limit_option,
)
from pinnace.cli.output import Steps
from pinnace.cli.provisioning import provisioning, provisioning_options
from pinnace.cli.timeline import mark_command, report, timeline_option
from pinnace.cluster.cluster import Cluster
from pinnace.cluster.cluster_job import Place
from pinnace.cluster.directory import Directory
from pinnace.cluster.kubeconfig import merge, unmerge
from pinnace.cluster.running import ended_on_failure
from pinnace.errors import UsageError

if TYPE_CHECKING:
    from pinnace.cli.options import ClusterOptions

DEFAULT_NAME = "default"

bridge_option = click.option(
    "--bridge",
    is_flag=False,
    flag_value="",
    metavar="[IMAGE]",
    help="Also run `pinnace bridge` there: Slurm jobs as resources. IMAGE is that of its helper pods.",
)
bridge_options_option = click.option(
    "--bridge-option",
    "bridge_options",
    multiple=True,
    metavar="OPTION",
    help="An option for that bridge, such as --bridge-option=--slurmrestd=http://slurm:6820 (repeat).",
)


@click.command()
@cluster_options
@bridge_option
@bridge_options_option
@provisioning_options
@click.option("--local", is_flag=True, help="No Slurm: this machine is the node. Stays in the foreground.")
@click.option(
    "--wait/--no-wait",
    default=None,
    help="Return when the cluster is ready (so it is without either), or once the job is submitted. "
    "--wait with the --name of a cluster that was started before waits for that one.",
)
@wait_limit_option
@retain_option
@timeline_option
@dry_run_option
@click.pass_context
def up(
    context: click.Context,
    *,
    asked: ClusterOptions,
    bridge: str | None,
    bridge_options: tuple[str, ...],
    pods_as_jobs: bool,
    elastic: tuple[int, int] | None,
    local: bool,
    wait: bool | None,
    wait_limit: float | None,
    retain: bool,
    show_timeline: bool,
    dry_run: bool,
) -> None:
    """Start a cluster in a job of its own, and return when it is ready."""
    if wait and Directory.named(asked.name or DEFAULT_NAME).path.is_dir():
        _wait_for_existing(context, wait_limit)
        return
    if local and wait is False:
        raise UsageError("--local with --no-wait: that cluster would end at once, because it ends with this command")
    if bridge_options:
        from pinnace.cli.bridge import check_options  # noqa: PLC0415 - takes time that few need

        check_options(bridge_options)
    cluster = asked.cluster(
        name=DEFAULT_NAME,
        place=Place.LOCAL if local else Place.BATCH,
        bridge=bridge,
        bridge_options=bridge_options,
        provisioning=provisioning(context, pods_as_jobs=pods_as_jobs, elastic=elastic),
        retain=retain,
    )
    if dry_run:
        script, options = cluster.script()
        click.echo(script, nl=False)
        click.echo(f"# sbatch {' '.join(options)}", err=True)
        return
    mark_command(cluster)
    steps = Steps()
    with steps.step("submitted") as step:
        cluster.start()
        if cluster.network:
            step.say(f"{cluster.network} has addresses for {cluster.directory.capacity}")
        step.text = "started here" if local else f"submitted job {cluster.job_id}"
    if wait is False:
        click.echo(f"Next: pinnace up --wait --name {cluster.name}", err=True)
        return
    with ended_on_failure(cluster, uninterrupted), steps.step("cluster is ready") as step:
        cluster.wait_ready(step.say, wait_limit)
    if show_timeline:
        report(cluster)
    _show_ready(cluster)
    if local:
        _stay(cluster)


def _stay(cluster: Cluster) -> None:
    """Wait until a local cluster is interrupted, and end it."""
    try:
        with contextlib.suppress(KeyboardInterrupt):
            cluster.wait_ended()
    finally:
        with uninterrupted():
            _end(cluster)


def _show_ready(cluster: Cluster) -> None:
    merge(cluster.kubeconfig)
    click.echo(f"The current context is pinnace-{cluster.name}. Next: kubectl get nodes", err=True)


def _wait_for_existing(context: click.Context, limit: float | None) -> None:
    """Wait for a cluster that another command has started; it does not end if the wait is in vain."""
    given = {
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in {"name", "wait", "wait_limit"}
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    cluster = Cluster.existing(context.params["name"] or DEFAULT_NAME)
    if given:
        raise UsageError(
            f"the cluster {cluster.name} was started before: it is too late for {', '.join(sorted(given))}",
            hint=f"Wait for it with `pinnace up --wait --name {cluster.name}`, or choose another --name.",
        )
    with Steps().step("cluster is ready") as step:
        cluster.wait_ready(step.say, limit)
    _show_ready(cluster)


@click.command()
@name_argument
def down(name: str | None) -> None:
    """End a cluster in order: pods get their grace period, then nothing is left."""
    cluster = pick(name)
    with Steps().step(f"cluster {cluster.name} has ended"):
        _end(cluster)


def _end(cluster: Cluster) -> None:
    try:
        unmerge(cluster.name)
    finally:
        cluster.down()
