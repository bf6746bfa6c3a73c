"""A Kubernetes cluster as Python sees it. The command line uses the same class.

    with pinnace.Cluster(nodes=2) as cluster:
        cluster.kubectl("create", "configmap", "settings", "--from-literal=a=1")
        result = cluster.run("job.yaml", on_line=lambda container, line: print(container, line))
    sys.exit(result.exit_code)

    pinnace.Cluster(nodes=2).run_once("job.yaml")  # the same as `pinnace run -N 2 job.yaml`, without its output

Nothing here prints or installs signal handlers. Failures are raised as ``pinnace.PinnaceError``: a message and a hint.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pinnace.cluster import configuration, ending, launching, reaching, running
from pinnace.cluster.cleanup import remove_dead_clusters
from pinnace.cluster.cluster_job import ClusterJob, Place
from pinnace.cluster.diagnosis import Diagnosis
from pinnace.cluster.directory import Directory, check_listening, find_ranges, home, random_name, verified_binaries
from pinnace.cluster.kubeconfig import kubectl_environment
from pinnace.cluster.kubectl import Kubectl
from pinnace.cluster.manifest import Manifest
from pinnace.cluster.reporting import SILENT
from pinnace.cluster.restricting import restriction
from pinnace.cluster.running import ManifestRun, RunResult
from pinnace.cluster.starting import Start
from pinnace.cluster.until import Until
from pinnace.cluster.workload import Workload
from pinnace.errors import ApiError, ClusterError
from pinnace.kube.client import Api
from pinnace.podjobs.settings import PodJobSettings
from pinnace.timeline.recorder import Recorder, StepName, command_marks

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from pinnace.cluster.reporting import StepReporter
    from pinnace.cluster.starting import Report
    from pinnace.cluster.workload import AppliedObject, OnLine
    from pinnace.slurm.jobs import QueuedJob
    from pinnace.spec import Provisioning

ALIVE_INTERVAL = 0.2  # seconds between looks whether a cluster still runs


def _no_report(_text: str) -> None:
    """For callers who do not ask what is waited for."""


def _no_line(_container: str, _text: str) -> None:
    """For callers who do not ask for output."""


def _default(given: str | None, variable: str) -> str:
    return os.environ.get(variable, "") if given is None else given


class Cluster:
    """A Kubernetes cluster inside a Slurm job.

    As a context manager it starts when the context is entered, and has ended when the context is left.
    """

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
        listen: str | None = None,
        interface: str | None = None,
        ports: str | None = None,
        bridge: str | None = None,
        bridge_options: Sequence[str] = (),
        provisioning: Provisioning | None = None,
        restricted: str | None = None,
        host_paths: Iterable[str | Path] = (),
        native_sockets: bool = True,
        retain: bool = False,
    ) -> None:
        """Describe a cluster; ``start`` starts it. Without a name it gets a random one.

        ``options`` are sbatch's, such as ``--time=30``. ``place`` says where nodes come from; by default from the
        allocation that this process runs in, or from a new job that ends with it. ``images`` are archives to load.
        ``binds`` leads from paths in every node to directories of the hosts. ``publish``, ``network``, ``listen``,
        ``interface``, ``ports``, ``bridge``, ``native_sockets`` and ``retain`` are the options of `pinnace up` of the
        same names; the site's file and the environment give the defaults that they have there.
        ``provisioning`` lets pods be Slurm jobs. ``restricted`` is a level of the Pod Security Standards, for a cluster
        into which others are let, and ``host_paths`` are the directories of the host that pods may claim there.
        """
        if None in {listen, interface, ports}:
            configuration.apply(os.environ)
        self.name = name or random_name(getpass.getuser())
        self.directory = Directory.named(self.name)
        self.place = place or (Place.ALLOCATION if "SLURM_JOB_ID" in os.environ else Place.INTERACTIVE)
        self.nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if self.place is Place.ALLOCATION else nodes
        self.options = launching.with_memory(launching.with_nodes(options, nodes), os.environ)
        self.images = list(images)
        self.binds = binds or {}
        self.publish = tuple(publish)
        self.network = network
        self.interface = _default(interface, "PINNACE_INTERFACE") if not listen else interface or ""
        listen = _default(listen, "PINNACE_LISTEN") if not interface else listen or ""
        self.listen, self.ports = check_listening(listen, _default(ports, "PINNACE_PORTS"), self.interface)
        self.bridge, self.bridge_options = bridge, tuple(bridge_options)
        self.restriction = restriction(restricted, host_paths)
        self.native_sockets = native_sockets
        self.provisioning = replace(provisioning, standing=self.nodes) if provisioning else None
        if self.provisioning and self.restriction:
            settings = self.provisioning.settings | {"restricted": True}
            self.provisioning = replace(self.provisioning, settings=settings)
        self.retain = retain
        self.timeline = Recorder()
        self.before_removal: Callable[[], None] = lambda: None
        self._prepare(keeps_logs=retain)

    def _prepare(self, *, keeps_logs: bool) -> None:
        self._job = ClusterJob(self.directory, self.place)
        self._diagnosis = Diagnosis(self._job, self.nodes, keeps_logs=keeps_logs)
        pods_as_jobs = self.provisioning is not None
        self._start = Start(self._job, self._diagnosis, nodes=self.nodes, pods_as_jobs=pods_as_jobs)

    @staticmethod
    def existing(name: str) -> Cluster:
        """A cluster that was started before, perhaps by another process. ClusterError if there is none."""
        cluster = Cluster(name, listen="", interface="", ports="")  # what they were is in its directory
        cluster.directory = Directory.existing(name)
        record = cluster.directory.job_record
        cluster.nodes = record.nodes if record else 1
        if record and record.local:
            cluster.place = Place.LOCAL
        cluster._prepare(keeps_logs=True)
        return cluster

    # --- starting -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the directory and submit the job; does not wait for anything. Undoes itself if it fails."""
        with self.timeline.step(StepName.DIRECTORY):
            self._create_directory()
        self._record()
        try:
            with self.timeline.step(StepName.IMAGES):
                self.directory.add_images(self.images)
            with self.timeline.step(StepName.SUBMISSION):
                self._job.launch(self.options, nodes=self.nodes, retain=self.retain)
        except BaseException:
            if self.directory.job_record:
                ending.end(self._job)
            self.timeline.close()
            self.directory.remove()
            raise

    def _create_directory(self) -> None:
        configuration.access(os.environ)  # what is wrong with it shall not be said when the job has begun
        remove_dead_clusters()
        ranges = find_ranges(self.network, self.nodes, self.provisioning)
        given = self.provisioning.settings if self.provisioning else None
        settings = configuration.pod_settings(home()) if given is None else PodJobSettings.from_json(given)
        self.directory.create(
            verified_binaries(),
            ranges=ranges,
            binds=self.binds,
            publish=self.publish,
            listen=self.listen,
            interface=self.interface,
            ports=self.ports,
            provisioning=self.provisioning,
            bridge=self.bridge,
            bridge_options=self.bridge_options,
            restriction=self.restriction,
            native_sockets=self.native_sockets,
            gres=settings.gres,
            device_files=settings.devices,
            local=self.place is Place.LOCAL,
            retain=self.retain,
        )

    def command(self) -> list[str]:
        """The argv that ``start`` would run, for a cluster that ends with this process."""
        return self._job.command(self.options)

    def script(self) -> tuple[str, list[str]]:
        """The batch script and the options that ``start`` would give to sbatch."""
        return self._job.script(self.options)

    def wait_for_api(self, report: Report = _no_report, limit: float | None = None) -> Path:
        """Wait until the API answers, with nodes or without, for ``limit`` seconds at most. Gives the kubeconfig.

        ``report`` gets a line whenever there is something new to say of what is waited for.
        """
        with self.timeline.step(StepName.API_WAIT):
            return self._start.wait_for_api(report, limit)

    def wait_ready(self, report: Report = _no_report, limit: float | None = None) -> None:
        """Wait until all nodes are ready for pods, for ``limit`` seconds at most. ClusterError if they never will."""
        self._record()
        with self.timeline.step(StepName.NODES_WAIT):
            self._start.wait_ready(report, limit)

    def wait_ended(self) -> None:
        """Wait for as long as the cluster runs; then raise the ClusterError that says why it has ended."""
        while True:
            self.check_alive()
            time.sleep(ALIVE_INTERVAL)

    def check_alive(self) -> None:
        """Raise if the cluster has ended or its head has failed, and say why."""
        self._diagnosis.check_alive()

    def check_time(self) -> None:
        """Raise if the cluster ends because its job's time is over."""
        self._diagnosis.check_time()

    # --- workloads ----------------------------------------------------------------------------------------------

    def apply(self, manifest: str | Path) -> list[AppliedObject]:
        """Apply a manifest, with `kubectl apply`: a file, a directory, a URL, or ``-`` for standard input."""
        workload = Workload(self.kubectl_command)
        workload.apply(Manifest.read(manifest))
        return workload.objects

    def run(
        self,
        manifest: str | Path,
        *,
        on_line: OnLine = _no_line,
        until: str | None = None,
        output_dir: Path | None = None,
        reporter: StepReporter = SILENT,
    ) -> RunResult:
        """Run a manifest in this cluster, which is up, and follow it until its Jobs and Pods have ended.

        ``on_line`` gets "pod/container" and every line of output, from several threads. ``until`` ends what never ends
        by itself: after "30m", or once "deployment/web=Available". ``output_dir`` collects logs and events.
        """
        run = ManifestRun(
            self, Manifest.read(manifest), on_line, until=Until.parse(until) if until else None,
            output_dir=output_dir, reporter=reporter,
        )  # fmt: skip
        return running.blame_time_limit(self, run.run)

    def run_once(
        self,
        manifest: str | Path,
        *,
        on_line: OnLine = _no_line,
        until: str | None = None,
        output_dir: Path | None = None,
        limit: float | None = None,
        reporter: StepReporter = SILENT,
    ) -> RunResult:
        """Start this cluster, run a manifest in it, and end it, whatever happens: what `pinnace run` does.

        The manifest is read and checked before anything starts, and applied while the nodes still do. ``limit`` bounds
        the start, in seconds. Everything else is as for ``run``.
        """
        run = ManifestRun(
            self, Manifest.read(manifest), on_line, until=Until.parse(until) if until else None,
            output_dir=output_dir, reporter=reporter,
        )  # fmt: skip
        return running.run_once(self, run.run, early=run.apply_early, limit=limit, reporter=reporter)

    # --- using it -----------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own kubeconfig. ClusterError before the API is there."""
        path = self.directory.path / "kubeconfig"
        if not path.exists():
            raise ClusterError(
                f"the cluster {self.name} is not ready yet",
                hint=f"Wait for it with `pinnace up --wait --name {self.name}`.",
            )
        return path

    def reach(self) -> None:
        """See to it that this host reaches the API: directly, or through a step of the job (see ``reaching``)."""
        reaching.refresh(self.directory)

    def ssh_kubeconfig(self, login: str) -> dict[str, Any]:
        """A kubeconfig for a machine that reaches this host by ``ssh login``, and has no pinnace."""
        self.reach()
        return reaching.over_ssh(self.kubeconfig, login)

    @property
    def kubectl_path(self) -> str:
        """Upstream's kubectl, of the cluster's own version."""
        return self.directory.spec.binaries["kubectl"]

    @property
    def kubectl_command(self) -> Kubectl:
        """That kubectl with the cluster's kubeconfig, for those who run it many times."""
        return Kubectl(path=self.kubectl_path, kubeconfig=self.kubeconfig)

    def kubectl(self, *args: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl and give what it printed. ClusterError has its own words if it fails, unless ``check`` is false.

        ``cluster.kubectl("logs", "job/hello").stdout`` is the log of a pod.
        """
        return self.kubectl_command.run(*args, stdin=stdin, check=check)

    def environment(self) -> dict[str, str]:
        """The variables with which programs use the cluster: its kubeconfig, and a PATH with its kubectl."""
        path = f"{Path(self.kubectl_path).parent}:{os.environ.get('PATH', '')}"
        return {**kubectl_environment(self.kubeconfig), "PATH": path}

    def service_urls(self, namespace: str, service: str) -> list[str]:
        """Where the published NodePorts of a Service can be reached from the site's network."""
        try:
            with contextlib.closing(Api(self.kubeconfig)) as api:
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
        if local := reaching.local_address(self.kubeconfig):
            return [f"http://{local.host}:{port}" for port in ports]
        return [f"http://{host}:{port}" for port in ports for host in self.directory.addresses(self.nodes)]

    def logs(self, component: str | None = None) -> Iterator[tuple[str, str]]:
        """The logs of the cluster's components, or of one: their names and contents. Those of pods kubectl gives."""
        logs = self.directory.path / "logs"
        for log in sorted(logs.rglob(f"{component or '*'}.log")):
            yield str(log.relative_to(logs)), log.read_text(errors="replace")

    # --- what runs it -------------------------------------------------------------------------------------------

    @property
    def job_id(self) -> int | None:
        """The number of the Slurm job, once it is known."""
        return self._job.id

    def job(self) -> QueuedJob | None:
        """The Slurm job, if there is one and Slurm still knows it."""
        return self._job.find()

    def state(self, job: QueuedJob | None = None) -> str:
        """The state of the job in Slurm's words; ``running`` or ``gone`` where there is none."""
        return self._job.state(job)

    @property
    def api_address(self) -> str | None:
        """Where the Kubernetes API is, once the head has said it."""
        return self.directory.api_address

    @property
    def access(self) -> str:
        """How the cluster's kubeconfig leads to the API: directly, or through a tunnel; "-" before it is written."""
        local = reaching.local_address(self.directory.path / "kubeconfig")
        if local:
            return f"through Slurm, at {local} of the login node"
        return "direct" if (self.directory.path / "kubeconfig").exists() else "-"

    # --- ending -------------------------------------------------------------------------------------------------

    def down(self) -> None:
        """End the cluster in order and remove its directory, unless it is to be retained."""
        self._record()
        with self.timeline.step(StepName.CLUSTER_END):
            ending.end(self._job)
            ending.cancel_pod_jobs(self._job)
        try:
            self.before_removal()
        finally:
            self.timeline.close()
            ending.remove(self._job, retain=self.retain)

    def _record(self) -> None:
        if self.directory.path.is_dir():
            self.timeline.write_to(command_marks(self.directory.path))

    def __enter__(self) -> Self:
        self.start()
        with running.ended_on_failure(self):
            self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
