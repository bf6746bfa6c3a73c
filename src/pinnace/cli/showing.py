"""The commands that show clusters: list, status, logs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pinnace.cli.naming import pick
from pinnace.cli.options import name_argument
from pinnace.cli.output import OutputFormat, output_option, show, show_one
from pinnace.cluster.cleanup import remove_dead_clusters
from pinnace.cluster.cluster import Cluster
from pinnace.cluster.directory import all_clusters
from pinnace.spec import NodeState

if TYPE_CHECKING:
    from pinnace.slurm.jobs import QueuedJob


@click.command(name="list")
@output_option
def list_clusters(output: OutputFormat) -> None:
    """Show your clusters."""
    remove_dead_clusters()
    rows = [about(Cluster.existing(directory.name)) for directory in all_clusters()]
    show(rows, output, columns=("name", "state", "job", "nodes", "hosts", "left"))


def about(cluster: Cluster) -> dict[str, Any]:
    """What is known of a cluster without asking its nodes."""
    job = cluster.job()
    return {
        "name": cluster.name,
        "state": cluster.state(job),
        "job": cluster.job_id or "-",
        "nodes": cluster.nodes,
        "hosts": _of(job, "nodes"),
        "left": _of(job, "time_left"),
        "api": cluster.api_address or "-",
        "access": cluster.access,
        "reason": job.reason if job else "",
    }


def _of(job: QueuedJob | None, field: str) -> str:
    return str(getattr(job, field) if job else "") or "-"


@click.command()
@name_argument
@output_option
def status(name: str | None, output: OutputFormat) -> None:
    """Show a cluster: its job, how long it still has, where its API is, and what runs on every node."""
    cluster = pick(name)
    services = []
    for index in range(cluster.nodes):
        if report := cluster.directory.services(index):
            services += [
                {"node": report.name, **asdict(service), "last": service.last_end or "-"} for service in report.services
            ]
    tables = [
        ("listening", listening(cluster), ("node", "address", "port", "purpose")),
        ("connections", connections(cluster), ("node", "outside", "pods", "accepted", "general", "spliced")),
        ("services", services, ("node", "name", "state", "restarts", "last")),
    ]
    show_one(about(cluster) | {"capacity": cluster.directory.capacity}, output, tables=tables)


def listening(cluster: Cluster) -> list[dict[str, Any]]:
    """What can be reached on the hosts' network, and what for."""
    rows = []
    for record in cluster.directory.records():
        if record.state is not NodeState.RUNNING:
            continue
        ports = {record.links: "links between nodes"}
        ports |= {record.sockets: "native sockets of pods"} if record.sockets else {}
        ports |= {record.api: "Kubernetes API"} if record.api else {}
        ports |= dict.fromkeys(record.published, "published NodePort, open to everybody")
        host = {"node": record.name, "address": record.address}
        rows += [{**host, "port": port, "purpose": purpose} for port, purpose in ports.items()]
    return rows


def connections(cluster: Cluster) -> list[dict[str, Any]]:
    """How many TCP connections of each node's pods took which path (see ``pinnace.network.native``)."""
    found = [cluster.directory.connections(index) for index in range(cluster.nodes)]
    return [asdict(report) | {"node": report.name} for report in found if report]


@click.command()
@name_argument
@click.argument("service", required=False)
def logs(name: str | None, service: str | None) -> None:
    """Print the logs of a cluster's components (all, or those of one)."""
    for log, text in pick(name).logs(service):
        click.echo(f"==> {log} <==")
        click.echo(text)
