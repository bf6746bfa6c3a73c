"""The commands of a cluster's life: up, run, list, status, down, and the ways into it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pinnace.cli.output import OutputFormat, Steps, output_option, show
from pinnace.cli.provisioning import provisioning, provisioning_options
from pinnace.cli.slurm_options import given_options, node_count, slurm_options
from pinnace.cluster import ksi
from pinnace.cluster.cluster import Cluster, Place
from pinnace.cluster.collecting import Collector
from pinnace.cluster.directory import Directory, all_clusters
from pinnace.cluster.kubeconfig import merge, unmerge
from pinnace.cluster.workload import Workload
from pinnace.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANIFESTS = {".yaml", ".yml", ".json"}
FILE = click.Path(exists=True, path_type=Path)

name_option = click.option("--name", help="Name of the cluster; one is made up without.")
image_option = click.option(
    "--image",
    "images",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Image to load first, as `pinnace image load` does (repeat).",
)
publish_option = click.option(
    "--publish",
    multiple=True,
    type=click.IntRange(1024, 65535),
    metavar="PORT",
    help="Let every host offer this port to the outside, leading to the NodePort of the same number (repeat).",
)
retain_option = click.option("--retain", is_flag=True, help="Keep the cluster's directory and logs when it has ended.")
dry_option = click.option("--dry-run", is_flag=True, help="Only print the batch script.")


def pick(name: str | None) -> Cluster:
    """The cluster that is meant: the named one, or the only one."""
    if name:
        return Cluster.existing(name)
    clusters = all_clusters()
    if len(clusters) != 1:
        names = ", ".join(cluster.name for cluster in clusters)
        if not clusters:
            raise ClusterError("you have no cluster", hint="Start one with `pinnace up`.")
        raise UsageError("you have several clusters: say which", hint=f"One of {names}.")
    return Cluster.existing(clusters[0].name)


@click.command()
@name_option
@slurm_options
@image_option
@publish_option
@provisioning_options
@click.option("--local", is_flag=True, help="No Slurm: this machine is the node. Stays in the foreground.")
@click.option("--no-wait", is_flag=True, help="Return once the job is submitted.")
@retain_option
@dry_option
@click.pass_context
def up(
    context: click.Context,
    *,
    name: str | None,
    images: tuple[Path, ...],
    publish: tuple[int, ...],
    pods_as_jobs: bool,
    elastic: tuple[int, int] | None,
    local: bool,
    no_wait: bool,
    retain: bool,
    dry_run: bool,
) -> None:
    """Start a cluster in a job of its own, and return when it is ready."""
    cluster = Cluster(
        name or "default",
        nodes=node_count(context),
        options=given_options(context),
        place=Place.LOCAL if local else Place.BATCH,
        images=images,
        publish=publish,
        provisioning=provisioning(context, pods_as_jobs=pods_as_jobs, elastic=elastic),
        retain=retain,
    )
    if dry_run:
        script, options = cluster.script()
        click.echo(script, nl=False)
        click.echo(f"# sbatch {' '.join(options)}", err=True)
        return
    steps = Steps()
    with steps.step("submitted") as step:
        cluster.start()  # undoes itself if it fails: a cluster of the same name is not ours to end
        step.text = "started here" if local else f"submitted job {cluster.job_id}"
    if no_wait:
        return
    with _undone_on_failure(cluster), steps.step("cluster is ready") as step:
        cluster.wait_ready(step.say)
    merge(cluster.kubeconfig)
    click.echo(f"The current context is pinnace-{cluster.name}. Next: kubectl get nodes", err=True)
    if local:
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
        unmerge(cluster.name)
        cluster.down()


@click.command()
@click.argument("workload", metavar="FILE")
@click.argument("arguments", nargs=-1)
@name_option
@slurm_options
@image_option
@publish_option
@click.option("--local", is_flag=True, help="No Slurm: this machine is the node.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also collect the logs of all containers, and the events, in this directory.",
)
@retain_option
@dry_option
@click.pass_context
def run(
    context: click.Context,
    *,
    workload: str,
    arguments: tuple[str, ...],
    name: str | None,
    images: tuple[Path, ...],
    publish: tuple[int, ...],
    local: bool,
    output_dir: Path | None,
    retain: bool,
    dry_run: bool,
) -> None:
    """Start a cluster, run a manifest or a script in it, and end it.

    The logs of all containers come to stdout as they are written. The exit code is the workload's.
    """
    if workload != "-" and not Path(workload).exists():
        raise UsageError(f"there is no file {workload}")
    cluster = Cluster(
        name,
        nodes=node_count(context),
        options=given_options(context),
        place=Place.LOCAL if local else None,
        images=images,
        publish=publish,
        retain=retain,
    )
    if dry_run:
        click.echo(shlex.join(cluster.command()))
        return
    steps = Steps()
    if _is_manifest(workload):
        collector = Collector(output_dir) if output_dir else None
        manifest = Manifest(cluster, workload, steps, collector)
        sys.exit(_run_in(cluster, steps, manifest.run, early=manifest.offer))

    def script() -> int:
        argv = [str(Path(workload).absolute()), *arguments]
        return subprocess.run(argv, env=os.environ | cluster.environment(), check=False).returncode

    sys.exit(_run_in(cluster, steps, script))


def _is_manifest(file: str) -> bool:
    return file == "-" or Path(file).suffix in MANIFESTS or Path(file).is_dir()


def _run_in(
    cluster: Cluster, steps: Steps, work: Callable[[], int], *, early: Callable[[], None] = lambda: None
) -> int:
    """Start a cluster, do the work, and end the cluster, whatever happens. ``early`` is done once the API answers."""
    cluster.start()  # undoes itself if it fails: a cluster of the same name is not ours to end
    try:
        with steps.step("cluster is ready") as step:
            cluster.wait_for_api(step.say)
            early()
            cluster.wait_ready(step.say)
        return work()
    finally:
        with steps.step("cluster has ended"):
            cluster.down()


@click.command(name="run-workload")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@name_option
@slurm_options
@image_option
@click.pass_context
def run_workload(context: click.Context, *, script: Path, name: str | None, images: tuple[Path, ...]) -> None:
    """Run a script written for KSI's run-workload.sh, as it is.

    It finds K8S_CLUSTER_NAME (a context of kubectl's), K8S_CLUSTER_API, K8S_CLUSTER_API_TOKEN and K8S_PORT (a NodePort
    that the hosts offer to the outside). The working directory is the host path /app of every node.
    """
    port = int(os.environ.get("K8S_PORT") or free_port())
    cluster = Cluster(
        name,
        nodes=node_count(context),
        options=given_options(context),
        images=images,
        binds={"/app": str(Path.cwd())},
        publish=[port],
    )

    def work() -> int:
        environment = os.environ | cluster.environment() | ksi.environment(cluster, port)
        return subprocess.run(["bash", str(script)], env=environment, check=False).returncode

    sys.exit(_run_in(cluster, Steps(), work))


def free_port() -> int:
    """A port of the range of NodePorts that nothing uses here; the nodes will say if it is taken there."""
    return secrets.choice(range(30000, 32768))


class Manifest:
    """A manifest to run: offered while the cluster starts, so that its pods wait for nothing but nodes."""

    def __init__(self, cluster: Cluster, file: str, steps: Steps, collector: Collector | None) -> None:
        self._cluster = cluster
        self._file = file
        self._steps = steps
        self._collector = collector
        self._workload: Workload | None = None

    def offer(self) -> None:
        """Not from stdin, which can be read only once."""
        workload = Workload(self._cluster.kubeconfig, self._cluster.kubectl)
        if self._file != "-" and workload.offer(self._file):
            self._workload = workload

    def run(self) -> int:
        with self._steps.step(f"applied {self._file}"):
            if self._workload is None:
                self._workload = Workload(self._cluster.kubeconfig, self._cluster.kubectl)
                self._workload.apply(self._file)
        try:
            return self._workload.follow(self._line, self._cluster.check_alive)
        except KeyboardInterrupt:
            click.echo("interrupted: ending the workload in order", err=True)
            return 128 + signal.SIGINT
        finally:
            if self._collector:
                self._collector.events(self._cluster.kubeconfig)

    def _line(self, who: str, text: str) -> None:
        click.echo(f"[{who}] {text}")
        if self._collector:
            self._collector.line(who, text)


@contextlib.contextmanager
def _undone_on_failure(cluster: Cluster) -> Iterator[None]:
    """What was begun is ended again if the start fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ClusterError):
            cluster.down()
        raise


@click.command(name="list")
@output_option
def list_clusters(output: OutputFormat) -> None:
    """Show your clusters."""
    rows = [_row(Cluster.existing(directory.name)) for directory in all_clusters()]
    show(rows, output, columns=("name", "state", "job", "nodes", "hosts", "left"))


def _row(cluster: Cluster) -> dict[str, Any]:
    job = cluster.job()
    return {
        "name": cluster.name,
        "state": (job.state.lower() if job else "gone"),
        "job": cluster.job_id or "-",
        "nodes": cluster.nodes,
        "hosts": (job.nodes if job else "") or "-",
        "left": (job.time_left if job else "") or "-",
        "reason": job.reason if job else "",
    }


@click.command()
@click.argument("name", required=False)
@output_option
def status(name: str | None, output: OutputFormat) -> None:
    """Show what runs on every node of a cluster."""
    cluster = pick(name)
    rows = []
    for index in range(cluster.nodes):
        report = cluster.directory.services(index) or {"name": f"node {index}", "services": []}
        rows += [
            {"node": report["name"], **service, "last": service["last_end"] or "-"} for service in report["services"]
        ]
    show(rows, output, columns=("node", "name", "state", "restarts", "last"))


@click.command()
@click.argument("name", required=False)
def down(name: str | None) -> None:
    """End a cluster in order: pods get their grace period, then nothing is left."""
    cluster = pick(name)
    with Steps().step(f"cluster {cluster.name} has ended"):
        unmerge(cluster.name)
        cluster.down()


@click.command()
@click.argument("name", required=False)
def kubeconfig(name: str | None) -> None:
    """Print a cluster's kubeconfig."""
    click.echo(pick(name).kubeconfig.read_text())


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", help="Name of the cluster.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str | None, words: tuple[str, ...]) -> None:
    """Run kubectl with a cluster's kubeconfig."""
    cluster = pick(name)
    os.execve(cluster.kubectl, ["kubectl", *words], os.environ | cluster.environment())  # noqa: S606


@click.command()
@click.argument("name", required=False)
def shell(name: str | None) -> None:
    """Open a shell in which kubectl uses a cluster."""
    cluster = pick(name)
    program = os.environ.get("SHELL", "/bin/sh")
    click.echo(f"kubectl uses the cluster {cluster.name} here; leave with `exit`.", err=True)
    os.execve(program, [program], os.environ | cluster.environment())  # noqa: S606


@click.command(name="port-forward", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", help="Name of the cluster.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="TYPE/NAME [LOCAL:]REMOTE...")
def port_forward(name: str | None, words: tuple[str, ...]) -> None:
    """Bring a port of a pod or Service to this machine; kubectl's own command."""
    cluster = pick(name)
    argv = ["kubectl", "port-forward", *words]
    os.execve(cluster.kubectl, argv, os.environ | cluster.environment())  # noqa: S606


@click.command()
@click.option("--name", help="Name of the cluster.")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.argument("service")
def url(name: str | None, namespace: str, service: str) -> None:
    """Print where a Service can be reached from outside the cluster."""
    for address in pick(name).service_urls(namespace, service):
        click.echo(address)


@click.command()
@click.argument("name", required=False)
@click.argument("service", required=False)
def logs(name: str | None, service: str | None) -> None:
    """Print the logs of a cluster's components (all, or those of one)."""
    directory = Directory.existing(name) if name else pick(None).directory
    pattern = f"{service}.log" if service else "*.log"
    for log in sorted((directory.path / "logs").rglob(pattern)):
        click.echo(f"==> {log.relative_to(directory.path / 'logs')} <==")
        click.echo(log.read_text(errors="replace"))


COMMANDS = (up, run, run_workload, list_clusters, status, down, kubeconfig, kubectl, shell, port_forward, url, logs)
