"""A cluster as Python sees it.

    with pinnace.Cluster(nodes=2) as cluster:
        subprocess.run(["kubectl", "get", "nodes"], env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)})

The command line uses the same class.
"""

from __future__ import annotations

import contextlib
import getpass
import http.client
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pinnace.cluster import launching
from pinnace.cluster.directory import Directory, Run, verified_binaries
from pinnace.controlplane.api import Api, ApiError
from pinnace.controlplane.bootstrap import is_ready
from pinnace.controlplane.placement import HEAD_TAINT, SCHEDULER, probe
from pinnace.errors import ClusterError, SlurmError
from pinnace.node.linux import die_with_parent
from pinnace.node.namespaces import as_root
from pinnace.node.stopping import ask_to_stop
from pinnace.provisioner.translation import claimed
from pinnace.slurm.commands import Slurm, submission_environment
from pinnace.slurm.states import JobState, Phase
from pinnace.spec import HEAD, ClusterSpec
from pinnace.storage.directories import Directories

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from pinnace.slurm.commands import Job
    from pinnace.spec import Provisioning

POLL = 0.05  # seconds between looks at files and processes; Slurm itself is asked once a second
START_LIMIT = 120.0  # seconds from the job's start to a cluster in which all nodes are ready
END_LIMIT = 60.0  # seconds; a drain takes 25 at most
TAIL = 15

Report = Callable[[str], None]


class Place(StrEnum):
    """Where a cluster's nodes come from."""

    BATCH = "batch"  # a batch job of its own, which outlives us
    INTERACTIVE = "interactive"  # a job of its own that ends with us
    ALLOCATION = "allocation"  # the job that we are in
    LOCAL = "local"  # this machine


class Cluster:
    """A Kubernetes cluster inside a Slurm job."""

    def __init__(
        self,
        name: str | None = None,
        *,
        nodes: int = 1,
        options: Sequence[str] = (),
        place: Place | None = None,
        images: Iterable[Path] = (),
        binds: dict[str, str] | None = None,
        publish: Iterable[int] = (),
        provisioning: Provisioning | None = None,
        retain: bool = False,
    ) -> None:
        self.name = name or f"{getpass.getuser()}-{secrets.token_hex(3)}"
        self.directory = Directory.named(self.name)
        self.place = place or (Place.ALLOCATION if "SLURM_JOB_ID" in os.environ else Place.INTERACTIVE)
        self.nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if self.place is Place.ALLOCATION else nodes
        self.options = launching.with_memory(options, os.environ)
        self.images = list(images)
        self.binds = binds or {}
        self.publish = tuple(publish)
        self.provisioning = replace(provisioning, standing=self.nodes) if provisioning else None
        self.retain = retain
        self.slurm = Slurm()
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def existing(name: str) -> Cluster:
        """A cluster that was started before, perhaps by another process."""
        cluster = Cluster(name)
        cluster.directory = Directory.existing(name)
        run = cluster.directory.run
        cluster.nodes = run.nodes if run else 1
        return cluster

    # --- starting -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the directory and submit; does not wait for anything."""
        self.directory.create(
            verified_binaries(), binds=self.binds, publish=self.publish, provisioning=self.provisioning
        )
        try:
            self.directory.add_images(self.images)
            self._launch()
        except BaseException:
            self.directory.remove()
            raise

    def _launch(self) -> None:
        path = self.directory.path
        if self.place is Place.BATCH:
            script, options = self.script()
            self.directory.write_run(Run(job=self.slurm.sbatch(script, options), nodes=self.nodes))
            return
        inside = self.place is Place.ALLOCATION
        environment = dict(os.environ) if inside else submission_environment(os.environ)
        with (path / "logs" / "job.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours to handle: the cluster ends in order
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - there are no threads
            )
        self.directory.write_run(Run(pid=self._process.pid, host=os.uname().nodename, nodes=self.nodes))

    def command(self) -> list[str]:
        """What starts the agents, for a cluster that ends with us."""
        path = self.directory.path
        if self.place is Place.LOCAL:
            return launching.agent_argv(path)
        if self.place is Place.ALLOCATION:
            return launching.step_argv(path, launching.inside_options(os.environ))
        options = [f"--job-name=pinnace-{self.name}", f"--comment=pinnace:{self.name}", *self.options]
        return launching.step_argv(path, options)

    def script(self) -> tuple[str, list[str]]:
        """What ``sbatch`` would get."""
        return launching.cluster_script(self.name, self.directory.path, self.options)

    def wait_for_api(self, report: Report = lambda _text: None) -> Path:
        """Until the API answers, with nodes or without. Gives the kubeconfig, and says what it waits for."""
        head = self._wait_for_head(report)
        kubeconfig = self.directory.write_kubeconfig(f"https://{head['address']}:{head['api']}")
        deadline = time.monotonic() + START_LIMIT
        api = Api(kubeconfig, timeout=5.0)
        while self._ready_nodes(api) is None:
            self._check_start(deadline, "its API does not answer")
            time.sleep(POLL)
        return kubeconfig

    def wait_ready(self, report: Report = lambda _text: None) -> None:
        """Until all nodes are ready for pods. Says what it waits for."""
        api = Api(self.wait_for_api(report), timeout=5.0)
        deadline = time.monotonic() + START_LIMIT
        said = -1
        while True:
            ready = self._ready_nodes(api)
            if ready is not None and ready != said:
                said = ready
                report(f"{ready} of {self.nodes} nodes are ready")
            if ready == self.nodes and self._controllers_work(api) and self._decides(api):
                return
            self._check_start(deadline, f"{ready or 0} of {self.nodes} nodes")
            time.sleep(POLL)

    def _check_start(self, deadline: float, state: str) -> None:
        """Raise if there is no use in waiting any longer."""
        self.check_alive()
        self._check_nodes()
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the cluster was not ready within {START_LIMIT:.0f} s: {state}",
                hint=f"Its logs are in {self.directory.path / 'logs'}.",
            )

    @staticmethod
    def _ready_nodes(api: Api) -> int | None:
        """How many nodes take pods; None while the API does not answer."""
        try:
            nodes = api.get("/api/v1/nodes")["items"]
        except (ApiError, OSError, http.client.HTTPException):
            return None
        return sum(_takes_pods(node) for node in nodes)

    @staticmethod
    def _controllers_work(api: Api) -> bool:
        """Whether the controller-manager has begun: nobody else makes the service account of this namespace."""
        try:
            api.get("/api/v1/namespaces/kube-public/serviceaccounts/default")
        except (ApiError, OSError, http.client.HTTPException):
            return False
        return True

    def _decides(self, api: Api) -> bool:
        """Whether the API makes jobs of pods already, where it is to."""
        if not self.provisioning:
            return True
        try:
            made = api.request("POST", *probe())
        except (ApiError, OSError, http.client.HTTPException):
            return False
        return bool(made["spec"]["schedulerName"] == SCHEDULER)

    def _wait_for_head(self, report: Report) -> dict[str, Any]:
        """Until the job runs and the first agent has said where it is. A job may be pending for days."""
        said, asked = "", 0.0
        while True:
            head = self.directory.node(0)
            self._check_nodes()
            if head:
                return head
            self.check_alive()
            if self.place is not Place.LOCAL and time.monotonic() - asked > 1.0:
                asked = time.monotonic()
                job = self.job()
                text = describe_pending(job) if job and job.state.phase is Phase.WAITING else ""
                if text and text != said:
                    report(text)
                    said = text
            time.sleep(POLL)

    def check_alive(self) -> None:
        """Raise if what runs the cluster has ended, or its head says that it cannot go on."""
        self._check_node(HEAD)
        if self._process is not None:
            if self._process.poll() is not None:
                raise ClusterError(
                    f"the cluster {self.name} has ended\n{self.tail()}",
                    hint="" if self.retain else "Keep its logs with --retain.",
                )
            return
        job = self.job()
        if job is None or job.state.phase is Phase.ENDED:
            raise ClusterError(
                f"the job of the cluster {self.name} has ended"
                + (f" ({job.state})" if job else "")
                + f"\n{self.tail()}",
                hint=f"Its logs are in {self.directory.path / 'logs'}.",
            )

    def _check_nodes(self) -> None:
        """Raise if a node says that it cannot be one."""
        for index in range(self.nodes):
            self._check_node(index)

    def _check_node(self, index: int) -> None:
        about = self.directory.node(index)
        if about and "failed" in about:
            raise ClusterError(
                about["failed"], hint=f"Its logs are in {self.directory.path / 'logs'}, if you give --retain."
            )

    def tail(self) -> str:
        """The last lines of the logs that tell why a cluster did not start."""
        logs = self.directory.path / "logs"
        for log in [*sorted(logs.glob("agent-*.log")), logs / "job.log"]:
            with contextlib.suppress(OSError):
                lines = log.read_text(errors="replace").strip().splitlines()
                if lines:
                    return "\n".join(lines[-TAIL:])
        return ""

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        path = self.directory.path / "kubeconfig"
        if not path.exists():
            raise ClusterError(
                f"the cluster {self.name} is not ready yet", hint="Wait for it with `pinnace up --wait`."
            )
        return path

    @property
    def kubectl(self) -> str:
        """Upstream's kubectl, of the cluster's own version."""
        return self.directory.spec.binaries["kubectl"]

    def environment(self) -> dict[str, str]:
        """What a script needs to use the cluster: its kubeconfig, and a kubectl that fits."""
        path = f"{Path(self.kubectl).parent}:{os.environ.get('PATH', '')}"
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def service_urls(self, namespace: str, service: str) -> list[str]:
        """Where the published NodePorts of a Service can be reached from the site's network."""
        api = Api(self.kubeconfig)
        try:
            found = api.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        except ApiError as error:
            raise ClusterError(f"Service {namespace}/{service}: {error}") from error
        published = self.directory.spec.publish
        ports = [port["nodePort"] for port in found["spec"]["ports"] if port.get("nodePort") in published]
        if not ports:
            raise ClusterError(
                f"no port of {namespace}/{service} is published on the hosts",
                hint=f"Use `pinnace port-forward svc/{service} …`; or give it a NodePort, and that port to --publish.",
            )
        hosts = [about["address"] for index in range(self.nodes) if (about := self.directory.node(index))]
        return [f"http://{host}:{port}" for port in ports for host in hosts]

    @property
    def job_id(self) -> int | None:
        run = self.directory.run
        if run and run.job:
            return run.job
        head = self.directory.node(0)
        return head.get("job") if head else None

    def job(self) -> Job | None:
        """The Slurm job, if there is one and Slurm still knows it."""
        if self.place is Place.LOCAL:
            return None
        number = self.job_id
        if number is None:
            found = [job for job in self.slurm.squeue() if job.comment == f"pinnace:{self.name}"]
            return found[0] if found else None
        jobs = self.slurm.squeue(number)
        return jobs[0] if jobs else None

    # --- ending -------------------------------------------------------------------------------------------------

    def down(self) -> None:
        """End the cluster in order and remove its directory, unless it is to be retained."""
        self._end()
        self._cancel_jobs()
        volumes = Directories(ClusterSpec.volumes_of(self.directory.path))
        if not self.retain:
            self.directory.remove()
        # The head has removed them, unless it was killed. What pods' users own, only root of their namespace can.
        if not volumes.end() and not as_root(volumes.end):
            raise ClusterError(
                f"volumes of the cluster {self.name} are left in {volumes.root}",
                hint="Remove them with `unshare --map-auto --map-root-user rm -r` where you have subordinate ids.",
            )

    def _end(self) -> None:
        """Ask the head to end in order; where it cannot be asked, let Slurm or the kernel end it."""
        asked = ask_to_stop(self.directory.path) if (self.directory.path / "cluster.json").exists() else False
        run = self.directory.run
        if self._process is not None:
            self._end_process(self._process, asked=asked)
        elif run and run.job is not None:
            if not (asked and self._job_gone(run.job)):
                self.slurm.scancel(run.job)
                if not self._job_gone(run.job):
                    raise SlurmError(f"job {run.job} does not end", hint=f"See `squeue -j {run.job}`.")
        elif run and run.pid is not None and not asked and run.host == os.uname().nodename:
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGTERM)

    def _cancel_jobs(self) -> None:
        """End what the provisioner has submitted. Nodes that run see that their head is gone; others still wait."""
        if not self.directory.has_jobs:
            return
        deadline = time.monotonic() + END_LIMIT
        cancelled: set[int] = set()
        while time.monotonic() < deadline:
            jobs = [job for job in self.slurm.squeue() if claimed(job.comment, self.name)]
            alive = [job.id for job in jobs if job.state.phase is not Phase.ENDED or job.state is JobState.COMPLETING]
            if not alive:
                return
            for number in set(alive) - cancelled:
                self.slurm.scancel(number)
                cancelled.add(number)
            time.sleep(0.2)
        raise SlurmError(f"jobs of the cluster {self.name} do not end", hint="See `squeue --me`.")

    @staticmethod
    def _end_process(process: subprocess.Popen[bytes], *, asked: bool) -> None:
        if not asked:
            process.terminate()
        try:
            process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _job_gone(self, job: int) -> bool:
        """Wait for a job's end. Whether it came."""
        deadline = time.monotonic() + END_LIMIT
        while time.monotonic() < deadline:
            jobs = self.slurm.squeue(job)
            if not jobs or (jobs[0].state.phase is Phase.ENDED and jobs[0].state is not JobState.COMPLETING):
                return True
            time.sleep(0.1)
        return False

    def __enter__(self) -> Self:
        self.start()  # undoes itself if it fails
        try:
            self.wait_ready()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


def _takes_pods(node: dict[str, Any]) -> bool:
    own = HEAD_TAINT.partition(":")[0]
    return is_ready(node) and all(taint["key"] == own for taint in node["spec"].get("taints", ()))


def describe_pending(job: Job) -> str:
    """What Slurm says of a job that waits."""
    start = f", expected to start {job.start}" if job.start else ""
    return f"job {job.id} is {job.state.lower()} in {job.partition} ({job.reason}){start}"
