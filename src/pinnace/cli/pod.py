"""The command ``pinnace pod``: a Slurm job that names an image runs as a pod, on the host that Slurm chose."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pinnace.cli.naming import pick
from pinnace.cli.output import show_output
from pinnace.cluster.slurm_pod import slurm_pod
from pinnace.cluster.slurm_pod_run import run_in_cluster, run_on_node
from pinnace.errors import UsageError
from pinnace.kube.access import Access
from pinnace.slurm import host_name


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
    asked = slurm_pod(os.environ, image=image, script=script, command=command, namespace=namespace, as_user=as_user)
    if kubeconfig:
        sys.exit(run_on_node(Access.from_file(kubeconfig), asked, host_name(os.environ), show_output))
    sys.exit(run_in_cluster(pick(name), asked, show_output))
