"""The command ``pinnace pod``: a Slurm job that names an image runs as a pod, on the host that Slurm chose."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pinnace.cli.naming import pick
from pinnace.cluster.joining import joined
from pinnace.cluster.slurm_pod import Wish, manifest, wish
from pinnace.cluster.workload import Workload
from pinnace.errors import ApiError, ClusterError, UsageError
from pinnace.kube import pods
from pinnace.kube.access import Access
from pinnace.kube.client import API_FAILURES, API_UNREACHABLE, Api
from pinnace.slurm import host_name

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL = 0.1
END_LIMIT = 20.0  # seconds for the pod's own end
LOST_LIMIT = 60.0  # seconds without the API


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--image", default="", help="Image to run ($KUBE_IMAGE).")
@click.option("--script", default="", help="Script to run with the image's bash ($KUBE_SCRIPT).")
@click.option("-n", "--namespace", default="", help="Namespace of the pod ($KUBE_NAMESPACE); made if there is none.")
@click.option("--name", help="One of your clusters, which this host joins for as long as the pod runs.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Of another cluster, in which this host is a node already.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def pod(
    *, image: str, script: str, namespace: str, name: str | None, kubeconfig: Path | None, command: tuple[str, ...]
) -> None:
    """Run an image as a pod, from a Slurm job, on the host that Slurm chose.

    Its output is the job's output and its exit code the job's; `scancel` ends it.
    """
    if "SLURM_JOB_ID" not in os.environ:
        raise UsageError("`pinnace pod` is for Slurm jobs", hint="Call it from a script that you give to sbatch.")
    as_user = (os.getuid(), os.getgid()) if kubeconfig else None
    wanted = wish(os.environ, image=image, script=script, command=command, namespace=namespace, as_user=as_user)
    if kubeconfig:
        sys.exit(_run(Access.from_file(kubeconfig), wanted, host_name(os.environ)))
    cluster = pick(name)
    with joined(cluster) as node:
        code = _run(Access.from_file(cluster.kubeconfig), wanted, node)
    sys.exit(code)


def _run(access: Access, wanted: Wish, node: str) -> int:
    api = Api(access)
    api.create("/api/v1/namespaces", {"metadata": {"name": wanted.namespace}})
    with _created(api, wanted, node):
        _wait_begun(api, wanted)
        return _follow(api, wanted)


def _follow(api: Api, wanted: Wish) -> int:
    """Print what the pod says until it has ended; its exit code. A connection that breaks is made again."""
    path = f"/api/v1/namespaces/{wanted.namespace}/pods/{wanted.name}"
    said, missed = 0, 0.0
    while True:
        try:
            for number, text in enumerate(api.stream(f"{path}/log?container=main&follow=true")):
                if number >= said:
                    click.echo(text)
                    said += 1
            found = api.get(path)
            missed = 0.0
        except API_UNREACHABLE as error:
            missed = missed or time.monotonic()
            if time.monotonic() - missed > LOST_LIMIT:
                raise ClusterError(f"the cluster does not answer any more: {error}") from error
        else:
            if pods.is_terminal(found):
                return pods.last_exit_code([found])
        time.sleep(POLL)


@contextlib.contextmanager
def _created(api: Api, wanted: Wish, node: str) -> Iterator[None]:
    """The pod, for as long as it is wanted; however that ends, it is gone afterwards."""
    path = f"/api/v1/namespaces/{wanted.namespace}/pods"
    try:
        api.request("POST", path, manifest(wanted, node))
    except ApiError as error:
        raise ClusterError(f"the pod was refused: {error}") from error
    try:
        yield
    finally:
        with contextlib.suppress(*API_FAILURES):
            begun = api.get(f"{path}/{wanted.name}")["status"].get("phase") != "Pending"
            api.request("DELETE", f"{path}/{wanted.name}", None if begun else {"gracePeriodSeconds": 0})
            deadline = time.monotonic() + END_LIMIT
            while time.monotonic() < deadline:
                api.get(f"{path}/{wanted.name}")  # raises when it is gone
                time.sleep(POLL)


def _wait_begun(api: Api, wanted: Wish) -> None:
    """Until the pod's container has started; why it has not, if that takes too long."""
    deadline = time.monotonic() + wanted.timeout
    while True:
        found = api.get(f"/api/v1/namespaces/{wanted.namespace}/pods/{wanted.name}")
        Workload.stuck(found)
        status: dict[str, Any] = found["status"]
        if status.get("phase") not in {None, "Pending"}:
            return
        if time.monotonic() > deadline:
            states = [of["state"].get("waiting", {}) for of in status.get("containerStatuses", ())]
            why = "; ".join(f"{state.get('reason')} {state.get('message', '')}" for state in states)
            raise ClusterError(f"the pod has not begun within {wanted.timeout:.0f} s: {why or 'no node took it'}")
        time.sleep(POLL)
