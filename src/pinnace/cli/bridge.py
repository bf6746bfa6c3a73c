"""The command ``pinnace bridge``: Slurm jobs as resources of a Kubernetes cluster."""

from __future__ import annotations

import logging
import os
import posixpath
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from pinnace.bridge import deployment
from pinnace.bridge.controller import Controller
from pinnace.bridge.crds import KINDS, SLURMJOB, definitions
from pinnace.bridge.nodes import show_partitions
from pinnace.bridge.pods import PodUser
from pinnace.bridge.policy import EVERY, Policy
from pinnace.bridge.reconciler import BridgeSettings
from pinnace.cli.naming import pick
from pinnace.cluster.kubeconfig import user_kubeconfig
from pinnace.errors import UsageError
from pinnace.kube.access import Access
from pinnace.kube.watch import end_with_thread
from pinnace.slurm.endpoint import Endpoint

if TYPE_CHECKING:
    from pinnace.spec import ClusterSpec


@click.command()
@click.option("--name", help="One of your clusters; without, your kubeconfig says which.")
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Any cluster's.")
@click.option("--context", default="", help="Context of the kubeconfig.")
@click.option("--in-pod", is_flag=True, help="Use the service account of the pod that this runs in.")
@click.option("-n", "--namespace", "namespaces", multiple=True, help="Only these namespaces (repeat).")
@click.option(
    "--as-me",
    multiple=True,
    metavar="NAMESPACE",
    help="Namespaces whose jobs run as you, through Slurm's command line (repeat; * is all). "
    "Without, all if it is a cluster of yours (--name) that was not started with --restricted, and none elsewhere.",
)
@click.option("--no-as-me", is_flag=True, help="No job runs as you, also in a cluster of yours.")
@click.option(
    "--slurmrestd",
    multiple=True,
    metavar="URL",
    help="A slurmrestd that jobs may name, as http://host:port, with a path if it is below one (repeat). "
    "Without, none is called.",
)
@click.option("--socket", "sockets", multiple=True, metavar="PATH", help="The same for a slurmrestd's UNIX socket.")
@click.option("--s3", multiple=True, metavar="URL", help="An S3 server that jobs may name (repeat). Without, none is.")
@click.option(
    "--host-path",
    "host_paths",
    multiple=True,
    metavar="DIRECTORY",
    help="Let helper pods mount this directory of a node, and what is below it, if a job names it (repeat).",
)
@click.option(
    "--sbatch-option",
    "sbatch_options",
    multiple=True,
    metavar="--NAME",
    help="An option of sbatch that jobs may give besides the usual ones (repeat).",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=2000, show_default=True, help="Most jobs of a namespace in Slurm at once."
)
@click.option("--files", is_flag=True, help="The files of your own jobs are here, also of those through slurmrestd.")
@click.option("--image", default="", help="Image with a shell and tar, for pods that follow logs and copy to volumes.")
@click.option("--log-pods", type=click.IntRange(0), default=20, show_default=True, help="How many at once.")
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds between polls.")
@click.option("--nodes", is_flag=True, help="Show Slurm's partitions as nodes.")
@click.option("--own-kind-only", is_flag=True, help="Only SlurmJob of pinnace.dev, not the predecessors' kinds.")
@click.option("--no-install", is_flag=True, help="The kinds are installed already; you may not.")
@click.option("--print-crds", is_flag=True, help="Only print the custom resource definitions.")
@click.option(
    "--print-manifest",
    metavar="IMAGE",
    help="Only print what runs the bridge in a cluster, from that image (deploy/image.py builds it).",
)
def bridge(
    *,
    name: str | None,
    kubeconfig: Path | None,
    context: str,
    in_pod: bool,
    namespaces: tuple[str, ...],
    as_me: tuple[str, ...],
    no_as_me: bool,
    slurmrestd: tuple[str, ...],
    sockets: tuple[str, ...],
    s3: tuple[str, ...],
    host_paths: tuple[str, ...],
    sbatch_options: tuple[str, ...],
    jobs: int,
    files: bool,
    image: str,
    log_pods: int,
    interval: float,
    nodes: bool,
    own_kind_only: bool,
    no_install: bool,
    print_crds: bool,
    print_manifest: str | None,
) -> None:
    """Run SlurmJob, BridgeJob and WlmJob objects of a Kubernetes cluster in Slurm. Stays in the foreground."""
    if print_crds:
        click.echo(documents(definitions()), nl=False)
        return
    if as_me and no_as_me:
        raise UsageError("--as-me and --no-as-me exclude each other")
    policy = Policy(
        command_line=frozenset(as_me),
        slurmrestd=tuple(Endpoint.parse(url) for url in (*slurmrestd, *(f"unix:{path}" for path in sockets))),
        s3=tuple(Endpoint.parse(url, default="https") for url in s3),
        host_paths=tuple(host_directory(path) for path in host_paths),
        options=frozenset(option.removeprefix("--") for option in sbatch_options),
        files=files,
        jobs=jobs,
    )
    if print_manifest:
        if not slurmrestd:
            raise UsageError(
                "a bridge in a cluster reaches Slurm through slurmrestd alone",
                hint="Say which tenants may use: --slurmrestd http://host:port.",
            )
        given = ["--image", image] if image else []
        given += [f"--slurmrestd={found}" for found in policy.slurmrestd] + [f"--s3={found}" for found in policy.s3]
        given += [f"--jobs={jobs}"]
        click.echo(documents(deployment.manifest(print_manifest, namespaces, given)), nl=False)
        return
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    if in_pod:
        access = Access.in_pod()
    elif name:
        cluster = pick(name)
        if not (cluster.directory.path / "kubeconfig").exists():
            cluster.wait_ready()
        access = Access.from_file(cluster.kubeconfig)
        policy = policy if as_me or no_as_me else for_own_cluster(policy, cluster.directory.spec)
    else:
        access = Access.from_file(kubeconfig or user_kubeconfig(), context=context)
    controller = Controller(
        access,
        policy,
        BridgeSettings(interval=interval, image=image, pods=log_pods, pod_user=None if name else pod_user()),
        namespaces=namespaces,
        kinds=(SLURMJOB,) if own_kind_only else KINDS,
    )
    threading.excepthook = end_with_thread
    if not no_install:
        controller.install()
    if nodes:
        show_partitions(controller.api, controller.slurms, controller.leading)
    click.echo(f"the bridge is ready (process {os.getpid()})", err=True)
    controller.run()


def for_own_cluster(policy: Policy, spec: ClusterSpec) -> Policy:
    """In a cluster of the user's own all jobs run as the user, unless it was started to let others in."""
    return policy if spec.restriction else replace(policy, command_line=frozenset({EVERY}))


def pod_user() -> PodUser | None:
    """As whom helper pods run in a cluster that is not pinnace's: with the user's own uid, if that is not root's."""
    return PodUser(uid=os.getuid(), gid=os.getgid()) if os.getuid() else None


def host_directory(path: str) -> str:
    """A directory that helper pods may mount; never the root, below which everything is."""
    found = posixpath.normpath(path)
    if not found.startswith("/") or found.strip("/") == "":
        raise UsageError(f"--host-path {path}: name a directory below /")
    return found


def check_options(args: tuple[str, ...]) -> None:
    """Whether these are options that `pinnace bridge` takes, before a job is submitted whose head runs it."""
    try:
        with bridge.make_context("bridge", list(args)):
            pass
    except click.ClickException as error:
        raise UsageError(f"--bridge-option: {error.format_message()}") from error


def documents(bodies: list[dict[str, Any]]) -> str:
    """As one manifest, without the marks that YAML has for parts that are the same."""
    return yaml.dump_all(bodies, Dumper=_Plain, sort_keys=False)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True
