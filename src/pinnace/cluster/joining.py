"""A host of another job as a node of a cluster that runs already, for as long as it is wanted.

It joins as the provisioner's nodes do: it needs the cluster's directory and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from pinnace.errors import ClusterError
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.nodes import is_ready
from pinnace.removal import remove_tree
from pinnace.sandbox.linux import die_with_parent
from pinnace.slurm import host_name
from pinnace.spec import NodeRecord, agent_argv
from pinnace.spec.records import indices, remove_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pinnace.cluster.cluster import Cluster

JOIN_LIMIT = 120.0  # seconds until the node is ready; two are usual
LEAVE_LIMIT = 25.0  # seconds for its end; after 30 (KillWait) Slurm kills what is left of a cancelled job
READY_POLL_INTERVAL = 0.1  # seconds


def node_name(environment: Mapping[str, str]) -> str:
    """The node's name: of this host in this job, and unlike the names that the provisioner gives to its own nodes."""
    task = environment.get("SLURM_PROCID", "0")
    return "-".join([host_name(environment), environment["SLURM_JOB_ID"], *([task] if task != "0" else [])]).lower()


@contextlib.contextmanager
def joined(cluster: Cluster) -> Iterator[str]:
    """Let this host be a node of a cluster, for a pod that tolerates its taint; gives its name. Nothing of it stays."""
    directory, name = cluster.directory.path, node_name(os.environ)
    api = Api(cluster.kubeconfig)
    with (directory / "logs" / f"agent-{name}.log").open("ab") as log:
        agent = subprocess.Popen(
            agent_argv(directory, "--join", "--as", name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            start_new_session=True,  # Ctrl-C and Slurm's signals are ours to handle: the pod ends first
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - there are no threads
        )
    try:
        _wait_ready(api, agent, name, directory / "logs" / f"agent-{name}.log")
        api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
        yield name
    finally:
        agent.terminate()
        try:
            agent.wait(LEAVE_LIMIT)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        with contextlib.suppress(*API_FAILURES):
            api.request("DELETE", f"/api/v1/nodes/{name}")
        _remove(directory, name)


def _remove(directory: Path, name: str) -> None:
    """The files of a node that has ended, and if it did in order, its place. A provisioner may be faster."""
    nodes = directory / "nodes"
    for index in indices(nodes):
        record = NodeRecord.read(nodes / f"{index}.json")
        if record and record.name == name and record.is_over:
            remove_record(nodes, index)
    for secret in (directory / "secrets").glob(f"node-{name}.*"):
        secret.unlink(missing_ok=True)
    remove_tree(directory / "pods" / name)


def _wait_ready(api: Api, agent: subprocess.Popen[bytes], name: str, log: Path) -> None:
    deadline = time.monotonic() + JOIN_LIMIT
    while True:
        if agent.poll() is not None:
            raise ClusterError(f"this host cannot be a node\n{log.read_text(errors='replace')[-2000:]}")
        with contextlib.suppress(*API_FAILURES):
            if is_ready(api.get(f"/api/v1/nodes/{name}")):
                return
        if time.monotonic() > deadline:
            raise ClusterError(f"node {name} was not ready within {JOIN_LIMIT:.0f} s", hint=f"Its log is {log}.")
        time.sleep(READY_POLL_INTERVAL)
