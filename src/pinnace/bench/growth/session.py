"""A cluster that grows: a job of its own, kwok beside us on the login node, and a client that adds nodes and pods."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING, Any

from pinnace.bench.allocation import end, start
from pinnace.bench.cluster_sessions import started
from pinnace.bench.growth.kwok import simulating
from pinnace.bench.growth.load import LoadSample
from pinnace.bench.growth.objects import SIMULATED
from pinnace.bench.preparation import describe
from pinnace.cluster.cluster import Cluster
from pinnace.cluster.cluster_job import Place
from pinnace.errors import BenchError, PinnaceError
from pinnace.interpreter import python_argv
from pinnace.kube.client import API_FAILURES, Api
from pinnace.slurm.options import argv as options_argv
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pinnace.bench.growth.kwok import Simulator
    from pinnace.bench.growth.sizes import NodesAndPods
    from pinnace.cluster.running import Ending
    from pinnace.slurm.options import SbatchOptions

__all__ = ["GrowthSession", "describe_cluster", "growth_session"]

CHECK_INTERVAL = 2.0  # seconds between looks whether the cluster and kwok still run
DELETE_LIMIT = 10.0  # seconds until the simulated nodes are deleted
SHOWN = 300  # characters of an error


def describe_cluster(identifier: str, nodes: int, options: SbatchOptions) -> Cluster:
    """The cluster, which ends with this process."""
    return Cluster(f"bench-{identifier}-growth", nodes=nodes, options=options_argv(options), place=Place.INTERACTIVE)


class GrowthSession:
    """A cluster that runs, and kwok for its simulated nodes."""

    def __init__(self, cluster: Cluster, simulator: Simulator) -> None:
        self._cluster, self._simulator = cluster, simulator

    def machine(self) -> dict[str, Any]:
        """The host of the control plane; nothing if it does not say."""
        head = self._cluster.directory.records()[0].name
        job, directory = self._cluster.job_id, self._cluster.directory.path
        try:
            return describe(job, head, 1, str(directory)) if job else {}
        except (PinnaceError, ValueError):
            return {}

    def check(self) -> None:
        """Raise if the cluster or kwok has ended, and say why."""
        self._cluster.check_alive()
        self._simulator.check()

    def measure(self, size: NodesAndPods) -> LoadSample:
        """Bring the cluster to a size, by a process that is a client of its API (see ``load``)."""
        words = (str(self._cluster.kubeconfig), str(size.nodes), str(size.pods))
        argv = python_argv("pinnace.bench.growth.load", *words)
        process = start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            output, errors = self._communicate(process)
        finally:
            end(process)
        if process.returncode:
            self.check()
            lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
            raise BenchError(
                f"{size.nodes} nodes with {size.pods} pods: {printable(lines[-1], SHOWN)}",
                hint="Has the job enough memory and CPUs? Ask for more with --mem and -c.",
            )
        return LoadSample.from_json(json.loads(output))

    def _communicate(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        while True:
            try:
                return process.communicate(timeout=CHECK_INTERVAL)
            except subprocess.TimeoutExpired:
                self.check()


@contextlib.contextmanager
def growth_session(cluster: Cluster, program: Path, ending: Ending, *, limit: float) -> Iterator[GrowthSession]:
    """Start the cluster and ``program``, which is kwok. Both have ended when the context is left, kwok first."""
    with started(cluster, ending, limit=limit):
        kubeconfig = cluster.kubeconfig
        try:
            with simulating(program, kubeconfig) as simulator:
                yield GrowthSession(cluster, simulator)
        finally:
            delete_simulated_nodes(kubeconfig)


def delete_simulated_nodes(kubeconfig: Path) -> None:
    """Once kwok has ended, nobody says of their pods that these have too, and the cluster's end would wait for it."""
    with contextlib.suppress(*API_FAILURES), contextlib.closing(Api(kubeconfig, timeout=DELETE_LIMIT)) as api:
        api.request("DELETE", f"/api/v1/nodes?labelSelector={SIMULATED}")
