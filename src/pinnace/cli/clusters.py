"""The commands of a cluster's life: up, run, down, and the ways into it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pinnace.cli.durations import Duration, wait_limit_option
from pinnace.cli.interruption import run_script, uninterrupted
from pinnace.cli.naming import complete_names, name_argument, pick, which_option
from pinnace.cli.output import Steps
from pinnace.cli.provisioning import provisioning, provisioning_options
from pinnace.cli.restricting import restricting_options
from pinnace.cli.slurm_options import given_argv, node_count, slurm_options
from pinnace.cluster import ksi, service_accounts
from pinnace.cluster.cluster import Cluster, Place
from pinnace.cluster.collecting import Collector
from pinnace.cluster.directory import Directory
from pinnace.cluster.kubeconfig import merge, unmerge
from pinnace.cluster.until import Reached, Until
from pinnace.cluster.workload import Workload
from pinnace.errors import ClusterError, UsageError
from pinnace.kube.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEFAULT = "default"  # the name that `up` gives
MANIFESTS = {".yaml", ".yml", ".json"}
FILE = click.Path(exists=True, path_type=Path)

name_option = click.option("--name", help="Name of the cluster; one is made up without.", shell_complete=complete_names)
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
network_option = click.option(
    "--network",
    metavar="CIDR",
    help="Take the addresses of pods, Services and nodes from this network, such as 10.128.0.0/16. "
    "Without, from one that this host has no route to.",
)
listen_option = click.option(
    "--listen",
    metavar="CIDR",
    default="",
    envvar="PINNACE_LISTEN",
    help="Listen at the address that each host has in this network, such as 10.1.0.0/16. "
    "Without, at the one that the host's name leads to. Default: $PINNACE_LISTEN.",
)
ports_option = click.option(
    "--ports",
    metavar="FIRST-LAST",
    default="",
    envvar="PINNACE_PORTS",
    help="Listen on ports of this range, such as 40000-40100, which the site's firewall lets through. "
    "Default: $PINNACE_PORTS.",
)
bridge_option = click.option(
    "--bridge",
    is_flag=False,
    flag_value="",
    metavar="[IMAGE]",
    help="Also run `pinnace bridge` there: Slurm jobs as resources. IMAGE is that of its helper pods.",
)
bridge_words_option = click.option(
    "--bridge-option",
    "bridge_words",
    multiple=True,
    metavar="OPTION",
    help="An option for that bridge, such as --bridge-option=--slurmrestd=http://slurm:6820 (repeat).",
)
retain_option = click.option("--retain", is_flag=True, help="Keep the cluster's directory and logs when it has ended.")
dry_option = click.option("--dry-run", is_flag=True, help="Only print the batch script.")


@click.command()
@name_option
@slurm_options
@image_option
@publish_option
@network_option
@listen_option
@ports_option
@restricting_options
@bridge_option
@bridge_words_option
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
@dry_option
@click.pass_context
def up(
    context: click.Context,
    *,
    name: str | None,
    images: tuple[Path, ...],
    publish: tuple[int, ...],
    network: str | None,
    listen: str,
    ports: str,
    restricted: str | None,
    host_paths: tuple[str, ...],
    bridge: str | None,
    bridge_words: tuple[str, ...],
    pods_as_jobs: bool,
    elastic: tuple[int, int] | None,
    local: bool,
    wait: bool | None,
    wait_limit: float | None,
    retain: bool,
    dry_run: bool,
) -> None:
    """Start a cluster in a job of its own, and return when it is ready."""
    if wait and Directory.named(name or DEFAULT).path.is_dir():
        _wait_for_existing(context, wait_limit)
        return
    if local and wait is False:
        raise UsageError("--local with --no-wait: that cluster would end at once, because it ends with this command")
    if bridge_words:
        from pinnace.cli.bridge import check_options  # noqa: PLC0415 - takes time that few need

        check_options(bridge_words)
    cluster = Cluster(
        name or DEFAULT,
        nodes=node_count(context),
        options=given_argv(context),
        place=Place.LOCAL if local else Place.BATCH,
        images=images,
        publish=publish,
        network=network,
        listen=listen,
        ports=ports,
        restricted=restricted,
        host_paths=host_paths,
        bridge=bridge,
        bridge_options=bridge_words,
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
    if wait is False:
        click.echo(f"Next: pinnace up --wait --name {cluster.name}", err=True)
        return
    with _undone_on_failure(cluster), steps.step("cluster is ready") as step:
        cluster.wait_ready(step.say, wait_limit)
    _say_ready(cluster)
    if local:
        try:
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    cluster.check_alive()
                    time.sleep(0.2)
        finally:
            with uninterrupted():
                try:
                    unmerge(cluster.name)
                finally:
                    cluster.down()


def _say_ready(cluster: Cluster) -> None:
    merge(cluster.kubeconfig)
    click.echo(f"The current context is pinnace-{cluster.name}. Next: kubectl get nodes", err=True)


def _wait_for_existing(context: click.Context, limit: float | None) -> None:
    """Wait for a cluster that somebody else has started; it is not ours to end if the wait is in vain."""
    given = {
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in {"name", "wait", "wait_limit"}
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    cluster = Cluster.existing(context.params["name"] or DEFAULT)
    if given:
        raise UsageError(
            f"the cluster {cluster.name} was started before: it is too late for {', '.join(sorted(given))}",
            hint=f"Wait for it with `pinnace up --wait --name {cluster.name}`, or choose another --name.",
        )
    with Steps().step("cluster is ready") as step:
        cluster.wait_ready(step.say, limit)
    _say_ready(cluster)


@click.command()
@click.argument("workload", metavar="FILE")
@click.argument("arguments", nargs=-1)
@name_option
@slurm_options
@image_option
@publish_option
@network_option
@listen_option
@ports_option
@restricting_options
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
    network: str | None,
    listen: str,
    ports: str,
    restricted: str | None,
    host_paths: tuple[str, ...],
    local: bool,
    wait_limit: float | None,
    output_dir: Path | None,
    until: str | None,
    retain: bool,
    dry_run: bool,
) -> None:
    """Start a cluster, run a manifest or a script in it, and end it.

    The logs of all containers come to stdout as they are written. The exit code is the workload's. Jobs and pods end by
    themselves; a workload of Deployments and the like stays until --until, or until it is interrupted.
    """
    if workload != "-" and not Path(workload).exists():
        raise UsageError(f"there is no file {workload}")
    if until and is_script(workload):
        raise UsageError("--until is for manifests: a script ends by itself")
    enough = Until.parse(until) if until else None
    cluster = Cluster(
        name,
        nodes=node_count(context),
        options=given_argv(context),
        place=Place.LOCAL if local else None,
        images=images,
        publish=publish,
        network=network,
        listen=listen,
        ports=ports,
        restricted=restricted,
        host_paths=host_paths,
        retain=retain,
    )
    if dry_run:
        click.echo(shlex.join(cluster.command()))
        return
    steps = Steps()
    if is_script(workload):

        def script() -> int:
            return run_script([str(Path(workload).absolute()), *arguments], os.environ | cluster.environment())

        sys.exit(_run_in(cluster, steps, script, limit=wait_limit))
    manifest = Manifest(cluster, workload, steps, Collector(output_dir) if output_dir else None, until=enough)
    sys.exit(_run_in(cluster, steps, manifest.run, early=manifest.offer, limit=wait_limit))


def is_script(file: str) -> bool:
    return file != "-" and Path(file).suffix not in MANIFESTS and not Path(file).is_dir()


def _run_in(
    cluster: Cluster,
    steps: Steps,
    work: Callable[[], int],
    *,
    early: Callable[[], None] = lambda: None,
    limit: float | None = None,
) -> int:
    """Start a cluster, do the work, and end the cluster, whatever happens. ``early`` is done once the API answers."""
    cluster.start()  # undoes itself if it fails: a cluster of the same name is not ours to end
    begin = time.monotonic()
    try:
        with steps.step("cluster is ready") as step:
            cluster.wait_for_api(step.say, limit)
            early()
            cluster.wait_ready(step.say, None if limit is None else limit - (time.monotonic() - begin))
        code = work()
        if code:
            cluster.check_time()  # a workload that was cut short has an exit code, but that is not why
        return code
    finally:
        with uninterrupted(), steps.step("cluster has ended"):
            cluster.down()


@click.command(name="run-workload")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@name_option
@slurm_options
@image_option
@listen_option
@ports_option
@click.pass_context
def run_workload(
    context: click.Context, *, script: Path, name: str | None, images: tuple[Path, ...], listen: str, ports: str
) -> None:
    """Run a script written for KSI's run-workload.sh, as it is.

    It finds K8S_CLUSTER_NAME (a context of kubectl's), K8S_CLUSTER_API, K8S_CLUSTER_API_TOKEN and K8S_PORT (a NodePort
    that the hosts offer to the outside). The working directory is the host path /app of every node.
    """
    port = int(os.environ.get("K8S_PORT") or free_port())
    cluster = Cluster(
        name,
        nodes=node_count(context),
        options=given_argv(context),
        images=images,
        binds={"/app": str(Path.cwd())},
        publish=[port],
        listen=listen,
        ports=ports,
    )

    def work() -> int:
        environment = os.environ | cluster.environment() | ksi.environment(cluster, port)
        return run_script(["bash", str(script)], environment)

    sys.exit(_run_in(cluster, Steps(), work))


def free_port() -> int:
    """A port of the range of NodePorts that nothing uses here; the nodes will say if it is taken there."""
    return secrets.choice(range(30000, 32768))


class Manifest:
    """A manifest to run: offered while the cluster starts, so that its pods wait for nothing but nodes."""

    def __init__(
        self, cluster: Cluster, file: str, steps: Steps, collector: Collector | None, *, until: Until | None
    ) -> None:
        self._cluster = cluster
        self._file = file
        self._steps = steps
        self._collector = collector
        self._until = until
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
            if self._until is None:
                return self._workload.follow(self._line, self._cluster.check_alive)
            with Reached(self._until, self._workload, self._cluster.check_alive) as reached:
                return self._workload.follow(self._line, self._cluster.check_alive, reached)
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
        with uninterrupted(), contextlib.suppress(ClusterError):
            cluster.down()
        raise


@click.command()
@name_argument
def down(name: str | None) -> None:
    """End a cluster in order: pods get their grace period, then nothing is left."""
    cluster = pick(name)
    with Steps().step(f"cluster {cluster.name} has ended"):
        try:
            unmerge(cluster.name)
        finally:
            cluster.down()


@click.command()
@name_argument
@click.option("--for", "account", metavar="NAME", help="One for somebody else, with a role in a namespace.")
@click.option("-n", "--namespace", metavar="NAMESPACE", help="With --for; made if it is not there. Without, NAME.")
@click.option(
    "--role", type=click.Choice(service_accounts.ROLES), default="edit", show_default=True, help="With --for."
)
@click.option("--valid", type=Duration(), default="1d", show_default=True, metavar="DURATION", help="With --for.")
def kubeconfig(name: str | None, *, account: str | None, namespace: str | None, role: str, valid: float) -> None:
    """Print a cluster's kubeconfig; with --for, one that you can give away.

    It is that of a service account, and void when that is deleted. Roles that may create pods need a cluster that was
    started with --restricted: in others a pod has all your rights.
    """
    cluster = pick(name)
    if account is None:
        if namespace:
            raise UsageError("--namespace is for a kubeconfig of somebody else", hint="Say whose with --for.")
        click.echo(cluster.kubeconfig.read_text())
        return
    service_accounts.require_restricted(cluster.directory.spec, role)
    where = namespace or account
    token = service_accounts.let_in(Api(cluster.kubeconfig), account, namespace=where, role=role, seconds=valid)
    own = json.loads(cluster.kubeconfig.read_text())
    click.echo(json.dumps(service_accounts.kubeconfig_for(own, account, where, token), indent=1))


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@which_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str | None, words: tuple[str, ...]) -> None:
    """Run kubectl with a cluster's kubeconfig."""
    cluster = pick(name)
    os.execve(cluster.kubectl, ["kubectl", *words], os.environ | cluster.environment())  # noqa: S606


@click.command()
@name_argument
def shell(name: str | None) -> None:
    """Open a shell in which kubectl uses a cluster."""
    cluster = pick(name)
    program = os.environ.get("SHELL", "/bin/sh")
    click.echo(f"kubectl uses the cluster {cluster.name} here; leave with `exit`.", err=True)
    os.execve(program, [program], os.environ | cluster.environment())  # noqa: S606


@click.command(name="port-forward", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@which_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="TYPE/NAME [LOCAL:]REMOTE...")
def port_forward(name: str | None, words: tuple[str, ...]) -> None:
    """Bring a port of a pod or Service to this machine; kubectl's own command."""
    cluster = pick(name)
    argv = ["kubectl", "port-forward", *words]
    os.execve(cluster.kubectl, argv, os.environ | cluster.environment())  # noqa: S606


@click.command()
@which_option
@click.option("-n", "--namespace", default="default", show_default=True)
@click.argument("service")
def url(name: str | None, namespace: str, service: str) -> None:
    """Print where a Service can be reached from outside the cluster."""
    for address in pick(name).service_urls(namespace, service):
        click.echo(address)


COMMANDS = (up, run, run_workload, down, kubeconfig, kubectl, shell, port_forward, url)
