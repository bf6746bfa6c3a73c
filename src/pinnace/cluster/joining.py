"""A host of another job as a node of a cluster that runs already, for as long as it is wanted.

A node needs the cluster's directory and nothing else: it takes the next free index there, makes its certificate, and
starts an agent. Its name has the job's number in it, because the host may be a node of the same cluster already.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from pinnace.cluster.launching import agent_argv
from pinnace.controlplane.api import Api, ApiError
from pinnace.controlplane.bootstrap import is_ready
from pinnace.controlplane.pki import create_nodes
from pinnace.errors import ClusterError
from pinnace.node.linux import die_with_parent
from pinnace.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pinnace.cluster.cluster import Cluster

LIMIT = 120.0  # seconds until a node is ready; two are usual
END_LIMIT = 25.0  # seconds for its end; after 30 (KillWait) Slurm kills what is left of a cancelled job
POLL = 0.1


def node_name(environment: Mapping[str, str]) -> str:
    """Of this host in this job, and of this task if several of them share the host."""
    host = environment.get("SLURMD_NODENAME") or socket.gethostname()
    task = environment.get("SLURM_LOCALID", "0")
    return "-".join([host, environment["SLURM_JOB_ID"], *([task] if task != "0" else [])]).lower()


def claim_index(directory: Path) -> int:
    """The first index that nobody has had; the file that says so is made at once or not at all."""
    for index in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            (directory / "nodes" / f"{index}.json").touch(mode=0o600, exist_ok=False)
            return index
    raise AssertionError("the numbers do not end")


@contextlib.contextmanager
def joined(cluster: Cluster) -> Iterator[str]:
    """Be a node of a cluster; gives its name. Nothing of it stays."""
    directory = cluster.directory.path
    api = Api(cluster.kubeconfig)
    name, index = node_name(os.environ), claim_index(directory)
    spec = ClusterSpec.load(directory.resolve())
    try:
        create_nodes(spec.secrets, spec.ranges, [(index, name)])
    except (ValueError, OSError) as error:
        raise ClusterError(f"{cluster.name} has no place for another node: {error}") from error
    with (directory / "logs" / f"agent-{name}.log").open("ab") as log:
        agent = subprocess.Popen(
            agent_argv(directory, "--index", str(index), "--name", name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C and Slurm's signals are ours to handle: the pod ends first
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - there are no threads
        )
    try:
        _wait_ready(api, agent, name, directory / "logs" / f"agent-{name}.log")
        yield name
    finally:
        agent.terminate()
        try:
            agent.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
            api.request("DELETE", f"/api/v1/nodes/{name}")


def _wait_ready(api: Api, agent: subprocess.Popen[bytes], name: str, log: Path) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        if agent.poll() is not None:
            raise ClusterError(f"this host cannot be a node\n{log.read_text(errors='replace')[-2000:]}")
        with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
            if is_ready(api.get(f"/api/v1/nodes/{name}")):
                return
        if time.monotonic() > deadline:
            raise ClusterError(f"node {name} was not ready within {LIMIT:.0f} s", hint=f"Its log is {log}.")
        time.sleep(POLL)
