"""A cluster as Python sees it.

    with pinnace.Cluster(nodes=2) as cluster:
        subprocess.run(["kubectl", "get", "nodes"], env=os.environ | cluster.environment())

The command line uses the same class.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pinnace.cluster import launching
from pinnace.cluster.directory import (
    Directory,
    Run,
    check_listening,
    find_ranges,
    need_room,
    random_name,
    verified_binaries,
)
from pinnace.cluster.kubeconfig import kubectl_environment
from pinnace.cluster.restricting import restriction
from pinnace.components.store import explain_no_space
from pinnace.controlplane.placement import HEAD_TAINT, SCHEDULER, probe
from pinnace.errors import ApiError, ClusterError, SlurmError
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.nodes import is_ready
from pinnace.node.stopping import ask_to_stop
from pinnace.podjobs.submission import claimed
from pinnace.sandbox.linux import die_with_parent
from pinnace.sandbox.namespaces import as_root
from pinnace.slurm.commands import REFUSED, Slurm
from pinnace.slurm.states import JobState, Phase
from pinnace.slurm.times import format_local
from pinnace.slurm.variables import submission_environment
from pinnace.spec import HEAD, ClusterSpec, NodeState, agent_argv
from pinnace.storage.directories import Directories

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from pinnace.slurm.jobs import QueuedJob
    from pinnace.spec import Provisioning

POLL = 0.05  # seconds between looks at files and processes
SLURM_PAUSE = 1.0  # seconds between questions to Slurm
START_LIMIT = 120.0  # seconds from the job's start to a cluster in which all nodes are ready
END_LIMIT = 60.0  # seconds; a drain takes 25 at most
VERDICT_LIMIT = 10.0  # seconds in which Slurm has to say how a job has ended
BY_ITSELF = {JobState.COMPLETED, JobState.FAILED}
FULL = 1 << 20  # bytes; a file system with fewer has cut something short
TAIL = 15
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

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
        network: str | None = None,
        listen: str = "",
        ports: str = "",
        bridge: str | None = None,
        bridge_options: Sequence[str] = (),
        provisioning: Provisioning | None = None,
        restricted: str | None = None,
        host_paths: Iterable[str | Path] = (),
        retain: bool = False,
    ) -> None:
        """``restricted`` is a level of the Pod Security Standards, for a cluster into which others are let, and
        ``host_paths`` are the directories of the host that pods may claim there (see ``cluster.restricting``).
        """
        self.name = name or random_name(getpass.getuser())
        self.directory = Directory.named(self.name)
        self.place = place or (Place.ALLOCATION if "SLURM_JOB_ID" in os.environ else Place.INTERACTIVE)
        self.nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if self.place is Place.ALLOCATION else nodes
        self.options = launching.with_memory(launching.with_nodes(options, nodes), os.environ)
        self.images = list(images)
        self.binds = binds or {}
        self.publish = tuple(publish)
        self.network = network
        self.listen, self.ports = check_listening(listen, ports)
        self.bridge, self.bridge_options = bridge, tuple(bridge_options)
        self.restriction = restriction(restricted, host_paths)
        self.provisioning = replace(provisioning, standing=self.nodes) if provisioning else None
        if self.provisioning and self.restriction:
            settings = self.provisioning.settings | {"restricted": True}
            self.provisioning = replace(self.provisioning, settings=settings)
        self.retain = retain
        self.slurm = Slurm()
        self._process: subprocess.Popen[bytes] | None = None
        self._found = False  # started before, by another process
        self._was_ready = False
        self._asked = -math.inf  # when Slurm was asked last whether the job runs

    @staticmethod
    def existing(name: str) -> Cluster:
        """A cluster that was started before, perhaps by another process."""
        cluster = Cluster(name)
        cluster.directory = Directory.existing(name)
        cluster._found = True
        run = cluster.directory.run
        cluster.nodes = run.nodes if run else 1
        if run and run.local:
            cluster.place = Place.LOCAL
        return cluster

    # --- starting -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the directory and submit; does not wait for anything."""
        ranges = find_ranges(self.network, self.nodes)
        self.directory.create(
            verified_binaries(),
            ranges=ranges,
            binds=self.binds,
            publish=self.publish,
            listen=self.listen,
            ports=self.ports,
            provisioning=self.provisioning,
            bridge=self.bridge,
            bridge_options=self.bridge_options,
            restriction=self.restriction,
        )
        try:
            self.directory.add_images(self.images)
            with held_signals():  # between a job's submission and our note of it, nobody may interrupt us
                self._launch()
        except BaseException:
            if self.directory.run:
                self._end()
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
                cwd=path,
                start_new_session=True,  # Ctrl-C is ours to handle: the cluster ends in order
                preexec_fn=_become_child,  # noqa: PLW1509 - there are no threads
            )
        local = self.place is Place.LOCAL
        self.directory.write_run(Run.of_process(self._process.pid, nodes=self.nodes, local=local))

    def command(self) -> list[str]:
        """What starts the agents, for a cluster that ends with us."""
        path = self.directory.path
        if self.place is Place.LOCAL:
            return agent_argv(path)
        if self.place is Place.ALLOCATION:
            return launching.step_argv(path, launching.inside_options(os.environ))
        options = [f"--job-name=pinnace-{self.name}", *self.options, f"--comment={launching.tag(self.name)}"]
        return launching.step_argv(path, options)

    def script(self) -> tuple[str, list[str]]:
        """What ``sbatch`` would get."""
        return launching.cluster_script(self.name, self.directory.path, self.options)

    def wait_for_api(self, report: Report = lambda _text: None, limit: float | None = None) -> Path:
        """Until the API answers, with nodes or without, or for ``limit`` seconds. Gives the kubeconfig.

        Says what it waits for.
        """
        give_up = time.monotonic() + (math.inf if limit is None else limit)
        kubeconfig = self.directory.write_kubeconfig(self._wait_for_head(report, give_up))
        deadline = time.monotonic() + START_LIMIT
        api = Api(kubeconfig, timeout=5.0)
        while self._ready_nodes(api) is None:
            self._check_start(deadline, give_up, "its API does not answer")
            time.sleep(POLL)
        return kubeconfig

    def wait_ready(self, report: Report = lambda _text: None, limit: float | None = None) -> None:
        """Until all nodes are ready for pods, or for ``limit`` seconds. Says what it waits for."""
        give_up = time.monotonic() + (math.inf if limit is None else limit)
        api = Api(self.wait_for_api(report, limit), timeout=5.0)
        deadline = time.monotonic() + START_LIMIT
        said = -1
        while True:
            ready = self._ready_nodes(api)
            if ready is not None and ready != said:
                said = ready
                report(f"{ready} of {self.nodes} nodes are ready")
            if ready == self.nodes and self._controllers_work(api) and self._decides(api):
                self._was_ready = True
                return
            self._check_start(deadline, give_up, f"{ready or 0} of {self.nodes} nodes")
            time.sleep(POLL)

    def _check_start(self, deadline: float, give_up: float, state: str) -> None:
        """Raise if there is no use in waiting any longer, or no wish to."""
        self.check_alive()
        self.check_time()
        self._check_nodes()
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the cluster was not ready within {START_LIMIT:.0f} s: {state}", hint=self._where_logs()
            )
        if time.monotonic() > give_up:
            raise ClusterError(
                f"the cluster was not ready within the limit: {state}", hint="Give it more time with --wait-limit."
            )

    @staticmethod
    def _ready_nodes(api: Api) -> int | None:
        """How many nodes take pods; None while the API does not answer."""
        try:
            nodes = api.get("/api/v1/nodes")["items"]
        except API_FAILURES:
            return None
        return sum(_takes_pods(node) for node in nodes)

    @staticmethod
    def _controllers_work(api: Api) -> bool:
        """Whether the controller-manager has begun: nobody else makes the service account of this namespace."""
        try:
            api.get("/api/v1/namespaces/kube-public/serviceaccounts/default")
        except API_FAILURES:
            return False
        return True

    def _decides(self, api: Api) -> bool:
        """Whether the API makes jobs of pods already, where it is to."""
        if not self.provisioning:
            return True
        try:
            made = api.request("POST", *probe())
        except API_FAILURES:
            return False
        return bool(made["spec"]["schedulerName"] == SCHEDULER)

    def _wait_for_head(self, report: Report, give_up: float) -> str:
        """Until the job runs and the first agent has said where it is. A job may be pending for days."""
        said, asked = "", 0.0
        while True:
            self._check_nodes()
            if address := self.api_address:
                return address
            self.check_alive()
            if self.place is not Place.LOCAL and time.monotonic() - asked > SLURM_PAUSE:
                asked = time.monotonic()
                job = self.job()
                text = describe_pending(job) if job and job.state.phase is Phase.WAITING else ""
                if text and text != said:
                    report(text)
                    said = text
            if time.monotonic() > give_up:
                raise ClusterError(
                    f"the cluster {self.name} was not started within the limit: {said or 'its job has only begun'}",
                    hint="Give it more time with --wait-limit, or ask Slurm for less.",
                )
            time.sleep(POLL)

    def check_alive(self) -> None:
        """Raise if what runs the cluster has ended, or its head says that it cannot go on; and say why."""
        self._check_node(HEAD)
        if not self._runs():
            self._check_nodes()  # one may have said it with its last breath
            self.check_time()
            job = self._ended_job()
            silent = not self.directory.heard
            if silent and job is None and self.place is Place.INTERACTIVE and self._process:
                raise SlurmError(f"Slurm did not take the job\n{self.tail()}", hint=REFUSED)
            message, hint = describe_end(self.name, job, ready=self._was_ready)
            if silent and (self.place is Place.ALLOCATION or (job and job.state in BY_ITSELF)):
                message += f"\nNothing was heard from its nodes: do they see the same {self.directory.path.parent}?"
                hint = "PINNACE_HOME has to be on a file system that all nodes share. See `pinnace doctor --on-node`."
            with explain_no_space(self.directory.path, "the cluster"):
                need_room(self.directory.path.parent, FULL)
            raise ClusterError(f"{message}\n{self.tail()}".strip(), hint=hint or self._where_logs())

    def check_time(self) -> None:
        """Raise if the cluster ends because its job's time is over."""
        if limit := self.directory.time_is_over:
            before = "" if self._was_ready else " before it was ready"
            raise ClusterError(f"the time limit ({limit}) ended the cluster{before}", hint="Give it more time with -t.")

    def _runs(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        if self.place is Place.LOCAL:
            run = self.directory.run
            return run is not None and run.alive
        if time.monotonic() - self._asked < SLURM_PAUSE:
            return True
        self._asked = time.monotonic()
        job = self.job()
        return job is not None and job.state.is_alive

    def _ended_job(self) -> QueuedJob | None:
        """The job that has ended, once Slurm has made up its mind how."""
        if self.place in {Place.LOCAL, Place.ALLOCATION}:
            return None
        deadline = time.monotonic() + VERDICT_LIMIT
        while True:
            job = self.job()
            settled = job is None or job.state.has_ended
            if settled or time.monotonic() > deadline:
                return job
            time.sleep(0.1)

    def _where_logs(self) -> str:
        if self._found or self.retain:
            return f"Its logs are in {self.directory.path / 'logs'}."
        return "Keep its logs with --retain."

    def _check_nodes(self) -> None:
        """Raise if a node says that it cannot be one."""
        for index in range(self.nodes):
            self._check_node(index)

    def _check_node(self, index: int) -> None:
        about = self.directory.node(index)
        if about and about.state is NodeState.FAILED:
            raise ClusterError(about.failure, hint=about.hint or self._where_logs())

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
                f"the cluster {self.name} is not ready yet",
                hint=f"Wait for it with `pinnace up --wait --name {self.name}`.",
            )
        return path

    @property
    def kubectl(self) -> str:
        """Upstream's kubectl, of the cluster's own version."""
        return self.directory.spec.binaries["kubectl"]

    def environment(self) -> dict[str, str]:
        """What a script needs to use the cluster: its kubeconfig, and a kubectl that fits."""
        path = f"{Path(self.kubectl).parent}:{os.environ.get('PATH', '')}"
        return {**kubectl_environment(self.kubeconfig), "PATH": path}

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
        hosts = [about.address for index in range(self.nodes) if (about := self.directory.node(index))]
        return [f"http://{host}:{port}" for port in ports for host in hosts]

    @property
    def job_id(self) -> int | None:
        run = self.directory.run
        if run and run.job:
            return run.job
        head = self.directory.node(0)
        return head.job if head else None

    def job(self) -> QueuedJob | None:
        """The Slurm job, if there is one and Slurm still knows it."""
        if self.place is Place.LOCAL:
            return None
        number = self.job_id
        if number is None:
            found = [job for job in self.slurm.squeue() if self._is_ours(job.comment)]
            return max(found, key=lambda job: job.id, default=None)
        return self._queued(number)

    def _is_ours(self, comment: str) -> bool:
        """Whether a job's comment says that it runs this cluster."""
        return comment == launching.tag(self.name)

    def _queued(self, number: int) -> QueuedJob | None:
        """A job of our user, if Slurm knows it: numbers are given again, to anybody's jobs.

        Its comment proves that it is the cluster's own, where there is something to cancel. An allocation that a
        cluster was started in has none, nor have the jobs of sites that change comments.
        """
        return next((job for job in self.slurm.squeue(number) if job.uid == os.getuid()), None)

    def state(self, job: QueuedJob | None = None) -> str:
        """How its job is, in Slurm's words; ``running`` or ``gone`` where there is none."""
        job = job or self.job()
        if job:
            return job.state.lower()
        run = self.directory.run
        return "running" if run and run.alive else "gone"

    @property
    def api_address(self) -> str | None:
        """Where the Kubernetes API is, once the head has said it."""
        head = self.directory.node(0)
        return f"https://{head.address}:{head.api}" if head and head.api else None

    def logs(self, service: str | None = None) -> Iterator[tuple[str, str]]:
        """The logs of its components (all, or those of one): their names and what they say."""
        logs = self.directory.path / "logs"
        for log in sorted(logs.rglob(f"{service or '*'}.log")):
            yield str(log.relative_to(logs)), log.read_text(errors="replace")

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
            self._end_job(run.job, asked=asked)
        elif run and run.alive and run.pid is not None:
            if not asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(run.pid, signal.SIGTERM)
            deadline = time.monotonic() + END_LIMIT
            while run.alive and time.monotonic() < deadline:
                time.sleep(POLL)

    def _end_job(self, number: int, *, asked: bool) -> None:
        """Wait for a job whose cluster was asked to end; cancel it otherwise, if it is the cluster's still."""
        if asked and self._job_gone(number):
            return
        if self.slurm.cancel(number, ours=self._is_ours) and not self._job_gone(number):
            raise SlurmError(f"job {number} does not end", hint=f"See `squeue -j {number}`.")

    def _cancel_jobs(self) -> None:
        """End what the provisioner has submitted. Nodes that run see that their head is gone; others still wait."""
        if not self.directory.has_jobs:
            return
        deadline = time.monotonic() + END_LIMIT
        cancelled: set[int] = set()
        while time.monotonic() < deadline:
            jobs = [job for job in self.slurm.squeue() if claimed(job.comment, self.name)]
            alive = [job.id for job in jobs if not job.state.has_ended]
            if not alive:
                return
            for number in set(alive) - cancelled:
                self.slurm.cancel(number, ours=lambda text: claimed(text, self.name) is not None)
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
            found = self._queued(job)
            if not found or found.state.has_ended:
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


def _become_child() -> None:
    """What starts the agents ends with us, and hears signals, though we hold ours back just now."""
    die_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Let signals that would interrupt us come a little later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _takes_pods(node: dict[str, Any]) -> bool:
    own = HEAD_TAINT.partition(":")[0]
    return is_ready(node) and all(taint["key"] == own for taint in node["spec"].get("taints", ()))


def describe_pending(job: QueuedJob) -> str:
    """What Slurm says of a job that waits."""
    start = f", expected to start {format_local(job.start)}" if job.start else ""
    return f"job {job.id} is {job.state.lower()} in {job.partition} ({job.reason}){start}"


def describe_end(name: str, job: QueuedJob | None, *, ready: bool) -> tuple[str, str]:
    """Why a cluster has ended that should not have, and what to do about it."""
    before = "" if ready else " before the cluster was ready"
    match job.state if job else None:
        case JobState.TIMEOUT if job:
            return f"the time limit ({job.time_limit}) ended the job {job.id}{before}", "Give it more time with -t."
        case JobState.OUT_OF_MEMORY if job:
            return f"the job {job.id} used more memory than it had{before}", "Give it more memory with --mem."
        case JobState.CANCELLED | JobState.PREEMPTED | JobState.NODE_FAIL if job:
            words = {JobState.NODE_FAIL: "ended, because a host failed"}.get(job.state, f"was {job.state.lower()}")
            return f"the job {job.id} {words}{before}", ""
        case None:
            return f"the cluster {name} has ended{before}", ""
        case state:
            return f"the job of the cluster {name} has ended{before} ({state})", ""
