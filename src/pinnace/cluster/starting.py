"""Waiting for a cluster that starts: for its job, its API, its nodes."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pinnace.cluster import reaching
from pinnace.cluster.cluster_job import Place
from pinnace.cluster.diagnosis import describe_pending
from pinnace.controlplane.placement import HEAD_TAINT, SCHEDULER, probe
from pinnace.errors import ClusterError, SlurmUnreachableError
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.nodes import is_ready
from pinnace.slurm.pacing import squeue_interval
from pinnace.slurm.states import Phase

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.cluster.cluster_job import ClusterJob
    from pinnace.cluster.diagnosis import Diagnosis

START_POLL_INTERVAL = 0.05  # seconds between looks at files, processes and the API
PAUSE_SHARE = 3  # times as long as a look, if that is longer
API_TIMEOUT = 5.0  # seconds for one answer
START_LIMIT = 120.0  # seconds from the job's start to a cluster in which all nodes are ready,
START_LIMIT_PER_NODE = 0.1  # and so many more for each of them

Report = Callable[[str], None]  # gets a line that says what is waited for


class Start:
    """A cluster on its way from a submitted job to nodes that take pods."""

    def __init__(self, job: ClusterJob, diagnosis: Diagnosis, *, nodes: int, pods_as_jobs: bool) -> None:
        self._job = job
        self._directory = job.directory
        self._diagnosis = diagnosis
        self._nodes = nodes
        self._pods_as_jobs = pods_as_jobs
        self._limit = START_LIMIT + START_LIMIT_PER_NODE * nodes

    def wait_for_api(self, report: Report, limit: float | None) -> Path:
        """Wait until the API answers, with nodes or without, for ``limit`` seconds at most. Gives the kubeconfig."""
        give_up = time.monotonic() + (math.inf if limit is None else limit)
        self._wait_for_head(report, give_up)
        known = (self._directory.path / "kubeconfig").exists()
        kubeconfig = reaching.write_kubeconfig(self._directory)
        if not known and reaching.local_address(kubeconfig):
            report("this host does not reach the nodes: the API is reached through a step of the job")
        deadline = time.monotonic() + self._limit
        with contextlib.closing(Api(kubeconfig, timeout=API_TIMEOUT)) as api:
            while ready_nodes(api) is None:
                self._check(deadline, give_up, "its API does not answer")
                time.sleep(START_POLL_INTERVAL)
        return kubeconfig

    def wait_ready(self, report: Report, limit: float | None) -> None:
        """Wait until all nodes are ready for pods, for ``limit`` seconds at most."""
        give_up = time.monotonic() + (math.inf if limit is None else limit)
        with contextlib.closing(Api(self.wait_for_api(report, limit), timeout=API_TIMEOUT)) as api:
            self._wait_for_nodes(api, report, give_up)
        self._diagnosis.was_ready = True

    def _wait_for_nodes(self, api: Api, report: Report, give_up: float) -> None:
        deadline = time.monotonic() + self._limit
        reported = -1
        while True:
            begun = time.monotonic()
            ready = ready_nodes(api)
            if ready is not None and ready != reported:
                reported = ready
                report(f"{ready} of {self._nodes} nodes are ready")
            if ready == self._nodes and controllers_run(api) and (not self._pods_as_jobs or assigns_scheduler(api)):
                return
            self._check(deadline, give_up, f"{ready or 0} of {self._nodes} nodes")
            time.sleep(pause(time.monotonic() - begun))

    def _check(self, deadline: float, give_up: float, state: str) -> None:
        """Raise if waiting any longer is of no use, or exceeds the caller's limit."""
        self._diagnosis.check_alive()
        self._diagnosis.check_time()
        self._diagnosis.check_nodes()
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the cluster was not ready within {self._limit:.0f} s: {state}", hint=self._diagnosis.where_logs()
            )
        if time.monotonic() > give_up:
            raise ClusterError(
                f"the cluster was not ready within the limit: {state}", hint="Give it more time with --wait-limit."
            )

    def _wait_for_head(self, report: Report, give_up: float) -> str:
        """Wait until the job runs and the head has recorded where its API is. A job may be pending for days."""
        pending, asked, changed = "", 0.0, time.monotonic()
        while True:
            begun = time.monotonic()
            self._diagnosis.check_nodes()
            if address := self._directory.api_address:
                return address
            self._diagnosis.check_alive()
            if self._job.place is not Place.LOCAL and begun - asked > squeue_interval(begun - changed):
                asked = begun
                text = self._pending()
                if text and text != pending:
                    report(text)
                    pending, changed = text, begun
            if time.monotonic() > give_up:
                raise ClusterError(
                    f"the cluster {self._directory.name} was not started within the limit: "
                    f"{pending or 'its job has only begun'}",
                    hint="Give it more time with --wait-limit, or ask Slurm for less.",
                )
            time.sleep(pause(time.monotonic() - begun))

    def _pending(self) -> str:
        """Why the job waits; empty if it does not. A Slurm that does not answer for a while has lost nothing."""
        try:
            job = self._job.find()
        except SlurmUnreachableError as error:
            return f"Slurm does not answer ({error.message}), waiting for it"
        return describe_pending(job) if job and job.state.phase is Phase.WAITING else ""


def pause(look: float) -> float:
    """Seconds until the next look, after one that took so long: it reads something of every node, of which there may
    be thousands.
    """
    return max(START_POLL_INTERVAL, PAUSE_SHARE * look)


def ready_nodes(api: Api) -> int | None:
    """How many nodes take pods; None while the API does not answer."""
    try:
        nodes = api.get("/api/v1/nodes")["items"]
    except API_FAILURES:
        return None
    return sum(_takes_pods(node) for node in nodes)


def _takes_pods(node: dict[str, Any]) -> bool:
    own = HEAD_TAINT.partition(":")[0]
    return is_ready(node) and all(taint["key"] == own for taint in node["spec"].get("taints", ()))


def controllers_run(api: Api) -> bool:
    """Whether the controller-manager works: nothing else creates the service account of this namespace."""
    try:
        api.get("/api/v1/namespaces/kube-public/serviceaccounts/default")
    except API_FAILURES:
        return False
    return True


def assigns_scheduler(api: Api) -> bool:
    """Whether the API already gives pods the scheduler by which they become jobs."""
    try:
        made = api.request("POST", *probe())
    except API_FAILURES:
        return False
    return bool(made["spec"]["schedulerName"] == SCHEDULER)
