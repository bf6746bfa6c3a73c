"""The ways into a cluster: kubeconfig, kubectl, shell, port-forward, url."""

from __future__ import annotations

import json
import os

import click

from pinnace.cli.durations import Duration
from pinnace.cli.naming import pick
from pinnace.cli.options import existing_name_option, name_argument
from pinnace.cluster import service_accounts
from pinnace.errors import UsageError

PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # for arguments that are kubectl's


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
    document = service_accounts.issue_kubeconfig(
        cluster, account, namespace=namespace or account, role=role, seconds=valid
    )
    click.echo(json.dumps(document, indent=1))


@click.command(context_settings=PASSED_ON)
@existing_name_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str | None, args: tuple[str, ...]) -> None:
    """Run kubectl with a cluster's kubeconfig."""
    cluster = pick(name)
    os.execve(cluster.kubectl_path, ["kubectl", *args], os.environ | cluster.environment())  # noqa: S606


@click.command()
@name_argument
def shell(name: str | None) -> None:
    """Open a shell in which kubectl uses a cluster."""
    cluster = pick(name)
    program = os.environ.get("SHELL", "/bin/sh")
    click.echo(f"kubectl uses the cluster {cluster.name} here; leave with `exit`.", err=True)
    os.execve(program, [program], os.environ | cluster.environment())  # noqa: S606


@click.command(name="port-forward", context_settings=PASSED_ON)
@existing_name_option
@click.argument("args", nargs=-1, required=True, type=click.UNPROCESSED, metavar="TYPE/NAME [LOCAL:]REMOTE...")
def port_forward(name: str | None, args: tuple[str, ...]) -> None:
    """Bring a port of a pod or Service to this machine; kubectl's own command."""
    cluster = pick(name)
    argv = ["kubectl", "port-forward", *args]
    os.execve(cluster.kubectl_path, argv, os.environ | cluster.environment())  # noqa: S606


@click.command()
@existing_name_option
@click.option("-n", "--namespace", default="default", show_default=True)
@click.argument("service")
def url(name: str | None, namespace: str, service: str) -> None:
    """Print where a Service can be reached from outside the cluster."""
    for address in pick(name).service_urls(namespace, service):
        click.echo(address)


COMMANDS = (kubeconfig, kubectl, shell, port_forward, url)
