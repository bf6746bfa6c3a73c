"""The commands ``pinnace run`` and ``pinnace run-workload``: a cluster for one workload."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinnace.cli.interruption import run_script, uninterrupted
from pinnace.cli.options import (
    cluster_options,
    dry_run_option,
    retain_option,
    script_cluster_options,
    wait_limit_option,
)
from pinnace.cli.output import Steps, show_output
from pinnace.cli.timeline import mark_command, report, timeline_option
from pinnace.cluster import ksi
from pinnace.cluster.cluster_job import Place
from pinnace.cluster.manifest import STDIN, SUFFIXES, Manifest, is_url
from pinnace.cluster.running import ManifestRun, RunResult, run_once
from pinnace.cluster.until import Until
from pinnace.errors import UsageError

if TYPE_CHECKING:
    from pinnace.cli.options import ClusterOptions


@click.command()
@click.argument("workload", metavar="FILE")
@click.argument("arguments", nargs=-1)
@cluster_options
@click.option("--local", is_flag=True, help="No Slurm: this machine is the node.")
@wait_limit_option
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also collect the logs of all containers, and the events, in this directory.",
)
@click.option(
    "--until",
    metavar="DURATION|KIND/NAME=CONDITION",
    help="End then, with exit code 0: after 30m, or once deployment/web=Available. For what never ends by itself.",
)
@retain_option
@timeline_option
@dry_run_option
def run(
    *,
    asked: ClusterOptions,
    workload: str,
    arguments: tuple[str, ...],
    local: bool,
    wait_limit: float | None,
    output_dir: Path | None,
    until: str | None,
    retain: bool,
    show_timeline: bool,
    dry_run: bool,
) -> None:
    """Start a cluster, run a manifest or a script in it, and end it.

    The logs of all containers come to stdout as they are written. The exit code is the workload's. Jobs and pods end by
    themselves; a workload of Deployments and the like stays until --until, or until it is interrupted.
    """
    if workload != STDIN and not is_url(workload) and not Path(workload).exists():
        raise UsageError(f"there is no file {workload}")
    if until and is_script(workload):
        raise UsageError("--until is for manifests: a script ends by itself")
    end = Until.parse(until) if until else None
    if is_script(workload) and not os.access(workload, os.X_OK):
        raise UsageError(
            f"{workload} is no program that can be run",
            hint=f"A script needs `chmod +x {shlex.quote(workload)}`; the name of a manifest ends in .yaml or .json.",
        )
    manifest = None if is_script(workload) else Manifest.read(workload)
    cluster = asked.cluster(place=Place.LOCAL if local else None, retain=retain)
    if dry_run:
        click.echo(shlex.join(cluster.command()))
        return
    mark_command(cluster)
    if show_timeline:
        cluster.before_removal = lambda: report(cluster, None if retain else output_dir or Path.cwd())
    steps = Steps()
    if manifest is None:
        argv = [str(Path(workload).absolute()), *arguments]

        def script() -> RunResult:
            return RunResult(exit_code=run_script(argv, os.environ | cluster.environment()))

        result = run_once(cluster, script, limit=wait_limit, reporter=steps, ending=uninterrupted)
    else:
        applied = ManifestRun(cluster, manifest, show_line, until=end, output_dir=output_dir, reporter=steps)

        def follow() -> RunResult:
            try:
                return applied.run()
            except KeyboardInterrupt:
                click.echo("interrupted: ending the workload in order", err=True)
                return RunResult(exit_code=128 + signal.SIGINT)

        early = applied.apply_early
        result = run_once(cluster, follow, early=early, limit=wait_limit, reporter=steps, ending=uninterrupted)
    sys.exit(result.exit_code)


def is_script(file: str) -> bool:
    return file != STDIN and not is_url(file) and Path(file).suffix not in SUFFIXES and not Path(file).is_dir()


def show_line(container: str, text: str) -> None:
    show_output(f"[{container}] {text}")


@click.command(name="run-workload")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@script_cluster_options
def run_workload(*, asked: ClusterOptions, script: Path) -> None:
    """Run a script written for KSI's run-workload.sh, as it is.

    It finds K8S_CLUSTER_NAME (a context of kubectl's), K8S_CLUSTER_API, K8S_CLUSTER_API_TOKEN and K8S_PORT (a NodePort
    that the hosts offer to the outside). The working directory is the host path /app of every node.
    """
    port = int(os.environ.get("K8S_PORT") or ksi.random_node_port())
    cluster = asked.cluster(binds={"/app": str(Path.cwd())}, publish=[port])

    def work() -> RunResult:
        environment = os.environ | cluster.environment() | ksi.environment(cluster, port)
        return RunResult(exit_code=run_script(["bash", str(script)], environment))

    sys.exit(run_once(cluster, work, reporter=Steps(), ending=uninterrupted).exit_code)
