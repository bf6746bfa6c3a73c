"""The command ``pinnace bridge``: Slurm jobs as resources of a Kubernetes cluster."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import click
import yaml

from pinnace.bridge import deployment
from pinnace.bridge.controller import Controller
from pinnace.bridge.crds import KINDS, SLURMJOB, definitions
from pinnace.bridge.nodes import show_partitions
from pinnace.bridge.reconciler import Settings
from pinnace.bridge.slurms import EVERY, Policy
from pinnace.cli.naming import pick
from pinnace.cluster.kubeconfig import user_kubeconfig
from pinnace.controlplane.access import Access
from pinnace.controlplane.watching import end_with_thread


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
    "Without, all if it is a cluster of yours (--name), and none elsewhere.",
)
@click.option("--socket", "sockets", multiple=True, metavar="PATH", help="A slurmrestd's socket that jobs may name.")
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
    sockets: tuple[str, ...],
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
    if print_manifest:
        given = ["--image", image] if image else []
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
        as_me = as_me or (EVERY,)
    else:
        access = Access.from_file(kubeconfig or user_kubeconfig(), context=context)
    controller = Controller(
        access,
        Policy(command_line=frozenset(as_me), sockets=frozenset(sockets), files=files),
        Settings(interval=interval, image=image, pods=log_pods),
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


def documents(bodies: list[dict[str, Any]]) -> str:
    """As one manifest, without the marks that YAML has for parts that are the same."""
    return yaml.dump_all(bodies, Dumper=_Plain, sort_keys=False)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True
