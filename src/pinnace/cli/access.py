"""The ways into a cluster: kubeconfig, kubectl, shell, port-forward, url."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from pinnace.cli.durations import Duration
from pinnace.cli.naming import pick
from pinnace.cli.options import existing_name_option, name_argument
from pinnace.cluster import service_accounts
from pinnace.errors import UsageError

if TYPE_CHECKING:
    from pinnace.cluster.cluster import Cluster

PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # for arguments that are kubectl's


def reached(name: str | None) -> Cluster:
    """The cluster that is meant, once this host reaches it."""
    cluster = pick(name)
    cluster.reach()
    return cluster


@click.command()
@name_argument
@click.option("--for", "account", metavar="NAME", help="One for somebody else, with a role in a namespace.")
@click.option("-n", "--namespace", metavar="NAMESPACE", help="With --for; made if it is not there. Without, NAME.")
@click.option(
    "--role", type=click.Choice(service_accounts.ROLES), default="edit", show_default=True, help="With --for."
)
@click.option("--valid", type=Duration(), default="1d", show_default=True, metavar="DURATION", help="With --for.")
@click.option("--ssh", "login", metavar="LOGIN", help="One for your laptop, which reaches the site by `ssh LOGIN`.")
def kubeconfig(
    name: str | None, *, account: str | None, namespace: str | None, role: str, valid: float, login: str | None
) -> None:
    """Print a cluster's kubeconfig; with --ssh, one for your laptop; with --for, one that you can give away.

    The one for a laptop needs nothing there but ssh, and has no secret in it.

    The one to give away is that of a service account, and void when that is deleted. Roles that may create pods need a
    cluster that was started with --restricted: in others a pod has all your rights.
    """
    if account and login:
        raise UsageError("--ssh is for your own laptop, and --for for somebody else", hint="Give one of them.")
    cluster = pick(name)
    if login:
        click.echo(json.dumps(cluster.ssh_kubeconfig(login), indent=1))
        return
    if account is None:
        if namespace:
            raise UsageError("--namespace is for a kubeconfig of somebody else", hint="Say whose with --for.")
        cluster.reach()
        click.echo(cluster.kubeconfig.read_text())
        return
    document = service_accounts.issue_kubeconfig(
        cluster, account, namespace=namespace or account, role=role, seconds=valid
    )
    click.echo(json.dumps(document, indent=1))


@click.command(context_settings=PASSED_ON)
@existing_name_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str | None, args: tuple[str, ...]) -> None:
    """Run kubectl with a cluster's kubeconfig."""
    cluster = reached(name)
    os.execve(cluster.kubectl_path, ["kubectl", *args], os.environ | cluster.environment())  # noqa: S606


@click.command()
@name_argument
def shell(name: str | None) -> None:
    """Open a shell in which kubectl uses a cluster."""
    cluster = reached(name)
    program = os.environ.get("SHELL", "/bin/sh")
    click.echo(f"kubectl uses the cluster {cluster.name} here; leave with `exit`.", err=True)
    os.execve(program, [program], os.environ | cluster.environment())  # noqa: S606


@click.command(name="port-forward", context_settings=PASSED_ON)
@existing_name_option
@click.argument("args", nargs=-1, required=True, type=click.UNPROCESSED, metavar="TYPE/NAME [LOCAL:]REMOTE...")
def port_forward(name: str | None, args: tuple[str, ...]) -> None:
    """Bring a port of a pod or Service to this machine; kubectl's own command."""
    cluster = reached(name)
    argv = ["kubectl", "port-forward", *args]
    os.execve(cluster.kubectl_path, argv, os.environ | cluster.environment())  # noqa: S606


@click.command()
@existing_name_option
@click.option("-n", "--namespace", default="default", show_default=True)
@click.argument("service")
def url(name: str | None, namespace: str, service: str) -> None:
    """Print where a Service can be reached from outside the cluster."""
    for address in reached(name).service_urls(namespace, service):
        click.echo(address)
