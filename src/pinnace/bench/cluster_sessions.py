"""The sessions of pinnace's three models. Each round has a cluster of its own, so that no model runs beside another."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
import os
import secrets
import shlex
import time
from typing import TYPE_CHECKING, Any

from pinnace.bench import objects
from pinnace.bench.allocation import execute, failure, in_directory
from pinnace.bench.measurements import FioPlace, Model, Server
from pinnace.bench.sessions import SMALL, STARTUP_LIMIT, Session, Site, wait_a_moment, without_hosts
from pinnace.cluster import configuration
from pinnace.cluster.cluster import Cluster
from pinnace.cluster.cluster_job import Place
from pinnace.cluster.directory import home
from pinnace.errors import ApiError, BenchError, ClusterError, PinnaceError
from pinnace.kube.client import API_FAILURES, Api
from pinnace.slurm.allowed_options import OF_PODS_TOO
from pinnace.slurm.options import argv as options_argv
from pinnace.slurm.options import merge
from pinnace.spec import Provisioning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pinnace.cluster.running import Ending
    from pinnace.slurm.options import SbatchOptions

NAMESPACE = "/api/v1/namespaces/default"
SLURMJOBS = "/apis/pinnace.dev/v1alpha1/namespaces/default/slurmjobs"
CLIENT, SERVER, STARTUP = "client", "server", "startup"
STAY = ("sleep", "86400")
READY_LIMIT = 300.0  # seconds until a pod runs, with its image there
API_LIMIT = 60.0  # seconds for a request that creates objects
DELETE_LIMIT = 90.0  # seconds until Slurm has ended the jobs of SlurmJobs: it gives them 30 before it kills them
NEVER = {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
         "CreateContainerError", "RunContainerError"}  # fmt: skip


class ClusterSession(Session):
    """A cluster that runs, and its API."""

    def __init__(self, site: Site, cluster: Cluster) -> None:
        super().__init__(site)
        self.cluster = cluster
        self.api = Api(cluster.kubeconfig)
        self._kubectl = cluster.kubectl_command
        self._has_client = False

    @property
    def job(self) -> int:
        number = self.cluster.job_id
        if number is None:
            raise BenchError("the cluster's job is not known")
        return number

    def check(self) -> None:
        self.cluster.check_alive()
        try:
            status = self.pod(CLIENT)["status"] if self._has_client else {}
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(
                f"the API of the cluster does not answer any more: {error}", hint="Has its host failed? See `sinfo -N`."
            ) from error
        if status.get("phase", "Running") != "Running":
            raise BenchError(f"the pod of the workload has ended: {status.get('message') or status['phase']}")

    def apply(self, *things: dict[str, Any]) -> None:
        """Not validated by kubectl: for that, each new API server would first have to describe all that it knows."""
        stdin = json.dumps(objects.many(things))
        self._kubectl.run("create", "--validate=false", "-f", "-", stdin=stdin, timeout=API_LIMIT)

    def delete(self, kind: str, name: str) -> None:
        self._kubectl.run("delete", kind, name, "--wait=true", check=False, timeout=READY_LIMIT)

    def pod(self, name: str) -> dict[str, Any]:
        return dict(self.api.get(f"{NAMESPACE}/pods/{name}"))

    def wait_pod(self, name: str, *phases: str, limit: float = READY_LIMIT) -> dict[str, Any]:
        """The pod, once it is in one of these phases. BenchError if it never will be."""
        begin = time.monotonic()
        while True:
            found = self.pod(name)
            if found["status"].get("phase") in phases:
                return found
            check_starting(found)
            self.check()
            wait_a_moment(
                begin, limit, f"the pod {name} was {found['status'].get('phase', 'not there')}, not {phases[0]},"
            )

    def first_line(self, name: str) -> float:
        """When the container of a pod that has ended wrote its first line, in seconds since 1970."""
        printed = self._kubectl.run("logs", "--timestamps", name, timeout=API_LIMIT).stdout
        return parse_stamp(printed.split()[0])

    def measure_startup(self, flags: SbatchOptions | None = None, node: str = "") -> float:
        """From the creation of a pod to its first line."""
        begin = time.time()
        self.create_startup_pod(flags, node)
        seconds = self.wait_startup(begin)
        self.delete("pod", STARTUP)
        return seconds

    def create_startup_pod(self, flags: SbatchOptions | None = None, node: str = "") -> None:
        image = self.site.settings.startup_image
        self.apply(objects.pod(STARTUP, image, ["echo", "here"], flags=flags, node=node))

    def wait_startup(self, begin: float) -> float:
        self.wait_pod(STARTUP, "Succeeded", limit=STARTUP_LIMIT)
        return self.first_line(STARTUP) - begin

    def create_client(self, *, claims: bool, flags: SbatchOptions | None = None, node: str = "") -> None:
        """The pod in which tasks run; the claims are for fio."""
        names = list(objects.CLAIMS) if claims else []
        directory = str(self.site.directory)
        image = self.site.settings.image
        self.apply(
            *(objects.claim(name) for name in names),
            objects.pod(CLIENT, image, STAY, flags=flags, node=node, directory=directory, claims=names),
        )
        self.wait_pod(CLIENT, "Running", limit=self.site.wait_limit if flags else READY_LIMIT)
        self._has_client = True

    def exec_argv(self, pod: str, argv: Sequence[str], *, stdin: bool = False) -> list[str]:
        given = ["-i"] if stdin else []
        config = f"--kubeconfig={self.cluster.kubeconfig}"
        return [self._kubectl.path, config, "exec", *given, pod, "--", *argv]

    def run(self, argv: Sequence[str], *, limit: float, place: FioPlace | None = None, stdin: str = "") -> str:
        if place is not None:
            argv = in_directory(self._base(place), self.site.settings.identifier, argv)
        return execute(self.exec_argv(CLIENT, argv, stdin=bool(stdin)), limit=limit, stdin=stdin)

    def _base(self, place: FioPlace) -> str:
        if place is FioPlace.DIRECTORY:
            return str(self.site.directory)
        return objects.CLAIMS[place][1] if place in objects.CLAIMS else "/tmp"  # noqa: S108 - of the container

    def pods_per_second(self, count: int, limit: float) -> float:
        return self._pods_per_second(count, limit, None)

    def _pods_per_second(self, count: int, limit: float, flags: SbatchOptions | None) -> float:
        begin = time.monotonic()
        self.apply(objects.pods_job("rate", self.site.settings.startup_image, count, flags))
        while self.api.get("/apis/batch/v1/namespaces/default/jobs/rate")["status"].get("succeeded", 0) < count:
            self.check()
            wait_a_moment(begin, limit, f"not all of {count} pods have ended")
        seconds = time.monotonic() - begin
        self.delete("job", "rate")
        return count / seconds


class OverSession(ClusterSession):
    """A cluster in a job, over all hosts. The workload's node is that of the control plane: the busiest one."""

    model = Model.OVER

    def create_early_startup_pod(self) -> None:
        """While the cluster still starts: the API refuses pods until there is their ServiceAccount."""
        begin = time.monotonic()
        while True:
            try:
                self.create_startup_pod()
            except ClusterError as error:
                wait_a_moment(begin, API_LIMIT, f"no pod could be created ({error})")
            else:
                return

    def serving(self, argv: Sequence[str], server: Server) -> contextlib.AbstractContextManager[str]:
        return self._serving_in_pod(argv) if server is Server.POD else self._serving_on_host(argv)

    @contextlib.contextmanager
    def _serving_in_pod(self, argv: Sequence[str]) -> Iterator[str]:
        self.apply(objects.pod(SERVER, self.site.settings.image, argv, node=self.site.server))
        try:
            yield str(self.wait_pod(SERVER, "Running")["status"]["podIP"])
        finally:
            with contextlib.suppress(PinnaceError):
                self.delete("pod", SERVER)

    def replicas_ready(self, count: int, limit: float) -> float:
        path = "/apis/apps/v1/namespaces/default/deployments/replicas"
        begin = time.monotonic()
        self.apply(objects.deployment("replicas", self.site.settings.startup_image, count))
        try:
            while self.api.get(path)["status"].get("readyReplicas", 0) < count:
                self.check()
                wait_a_moment(begin, limit, f"not all of {count} replicas were ready")
            return time.monotonic() - begin
        finally:
            with contextlib.suppress(PinnaceError):
                self.delete("deployment", "replicas")

    def api_requests(self, seconds: float) -> float:
        begin, count = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            self.api.get(f"{NAMESPACE}/services/kubernetes")
            count += 1
        return count / (time.monotonic() - begin)

    def dns_server(self) -> str:
        return str(self.api.get("/api/v1/namespaces/kube-system/services/kube-dns")["spec"]["clusterIP"])


class PodJobSession(ClusterSession):
    """Pods as jobs: the head is on the last host, and pods are jobs on the first."""

    model = Model.PODS

    @property
    def flags(self) -> SbatchOptions:
        options = self.site.options(self.site.client)
        return {name: value for name, value in options.items() if name not in OF_PODS_TOO | {"nodes"}}

    def pods_per_second(self, count: int, limit: float) -> float:
        return self._pods_per_second(count, limit, dict(SMALL))


class SlurmJobSession(ClusterSession):
    """SlurmJob objects: the bridge is on the last host, and every command is a job on the first."""

    model = Model.SLURMJOB

    def __init__(self, site: Site, cluster: Cluster) -> None:
        super().__init__(site, cluster)
        self._name, self._count = f"bench-{secrets.token_hex(4)}", 0  # of no other session, also if it is resumed

    def wait_bridge(self) -> None:
        begin = time.monotonic()
        while True:
            with contextlib.suppress(ApiError):
                self.api.get(SLURMJOBS)
                return
            self.check()
            wait_a_moment(begin, READY_LIMIT, "the bridge was not ready")

    def measure_slurmjob_startup(self) -> float:
        begin = time.time()
        return float(self._job(["date", "+%s.%N"], limit=STARTUP_LIMIT)) - begin

    def run(self, argv: Sequence[str], *, limit: float, place: FioPlace | None = None, stdin: str = "") -> str:
        del stdin
        return self._job(self._on_host(argv, place), limit=limit + STARTUP_LIMIT)

    def _job(self, argv: Sequence[str], *, limit: float) -> str:
        """Run a command as a SlurmJob. The API is asked rarely: whoever looks takes CPUs from what is looked at."""
        self._count += 1
        name, directory = f"{self._name}-{self._count}", self.site.directory
        script = f"#!/bin/sh\n{shlex.join(argv)}\necho $? > {name}.code.new && mv {name}.code.new {name}.code\n"
        files = {kind: directory / f"{name}.{kind}" for kind in ("out", "err", "code")}
        options = {key: value for key, value in self.site.options(self.site.client).items() if key != "nodes"}
        try:
            self.apply(objects.slurmjob(name, script, options, directory=str(directory)))
            begin = time.monotonic()
            while not appeared(files["code"]):
                self._check_job(name)
                wait_a_moment(begin, limit, f"the SlurmJob {name} has not ended")
            code, output, errors = (read(files[kind]) for kind in ("code", "out", "err"))
        finally:
            self._delete_jobs(name)
        if int(code):
            raise failure(int(code), f"{errors}\n{output}")
        return output

    def _delete_jobs(self, *names: str) -> None:
        """Delete SlurmJobs, which ends their jobs: these would outlive the cluster, and run beside later sessions.

        If the API is gone, nobody can. This calls no kubectl, which a second Ctrl-C would end.
        """
        begin = time.monotonic()
        with contextlib.suppress(*API_FAILURES, BenchError):
            for name in names:
                self.api.delete_if_there(f"{SLURMJOBS}/{name}")
            for name in names:
                while self.api.get_or_none(f"{SLURMJOBS}/{name}") is not None:
                    wait_a_moment(begin, DELETE_LIMIT, f"the SlurmJob {name} was not deleted")

    def _check_job(self, name: str) -> None:
        conditions = self.api.get(f"{SLURMJOBS}/{name}").get("status", {}).get("conditions", [])
        failed = [found for found in conditions if found["type"] == "Failed" and found["status"] == "True"]
        if failed:
            raise BenchError(f"the SlurmJob {name} failed: {failed[0].get('message', '')}")
        self.check()

    def pods_per_second(self, count: int, limit: float) -> float:
        options = merge(without_hosts(self.site.settings.options), SMALL)
        names = [f"rate-{number}" for number in range(count)]
        directory = str(self.site.directory)
        begin = time.monotonic()
        try:
            self.apply(*(objects.slurmjob(name, "#!/bin/sh\ntrue\n", options, directory=directory) for name in names))
            while self._complete(set(names)) < count:
                self.check()
                wait_a_moment(begin, limit, f"not all of {count} SlurmJobs have ended")
            return count / (time.monotonic() - begin)
        finally:
            self._delete_jobs(*names)

    def _complete(self, names: set[str]) -> int:
        items = [item for item in self.api.get(SLURMJOBS)["items"] if item["metadata"]["name"] in names]
        conditions = [found for item in items for found in item.get("status", {}).get("conditions", [])]
        return sum(found["type"] == "Complete" and found["status"] == "True" for found in conditions)


def appeared(path: Any) -> bool:
    """Whether a file is there, also on NFS: listing the directory makes it look again."""
    return path.name in os.listdir(path.parent)  # noqa: PTH208 - a real opendir, now


def read(path: Any) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def check_starting(pod: dict[str, Any]) -> None:
    """BenchError if a pod can never start."""
    status = pod["status"]
    for container in status.get("containerStatuses", ()):
        waiting = container["state"].get("waiting", {})
        if waiting.get("reason") in NEVER:
            raise BenchError(
                f"the pod {pod['metadata']['name']} cannot start: {waiting['reason']}: {waiting.get('message', '')}",
                hint="Is the image loaded? See `pinnace image list`.",
            )
    if status.get("phase") == "Failed":
        states = [container["state"].get("terminated", {}) for container in status.get("containerStatuses", ())]
        why = status.get("message") or "".join(str(state.get("reason", "")) for state in states)
        raise BenchError(f"the pod {pod['metadata']['name']} failed: {why}")


def parse_stamp(text: str) -> float:
    """A time of RFC 3339 with nanoseconds, as kubectl prints it."""
    whole, _, rest = text.partition(".")
    fraction = rest.rstrip("Z").split("+")[0] or "0"
    begin = dt.datetime.fromisoformat(whole).timestamp()
    return begin + float(f"0.{fraction}")


def describe_cluster(site: Site, model: Model, number: int) -> Cluster:
    """The cluster of a session, which ends with this process."""
    name = f"bench-{site.settings.identifier}-{model}-{number}"
    hosts = site.hosts if model is Model.OVER else (site.server,)
    options = options_argv(site.options(*hosts))
    more: dict[str, Any] = {}
    if model is Model.PODS:
        given = {key: value for key, value in site.settings.options.items() if key in OF_PODS_TOO}
        settings = configuration.pod_settings(home())
        more["provisioning"] = Provisioning(
            pods_as_jobs=True, options=tuple(options_argv(given)), settings=settings.to_json()
        )
    if model is Model.SLURMJOB:
        more["bridge"] = ""
    return Cluster(name, nodes=len(hosts), options=options, place=Place.INTERACTIVE, **more)


@contextlib.contextmanager
def started(
    cluster: Cluster, ending: Ending, early: Callable[[], None] | None = None, *, limit: float
) -> Iterator[None]:
    """A cluster that has started, and has ended when the context is left. ``early`` is done once the API answers."""
    cluster.start()
    try:
        cluster.wait_for_api(limit=limit)
        if early:
            early()
        cluster.wait_ready(limit=limit)
        yield
    finally:
        with ending(), contextlib.suppress(ClusterError):
            cluster.down()


@contextlib.contextmanager
def cluster_session(
    site: Site,
    model: Model,
    number: int,
    *,
    startup: bool,
    workload: bool,
    claims: bool,
    ending: Ending,
    settle: Callable[[], None] = lambda: None,
) -> Iterator[ClusterSession]:
    """A session of one of pinnace's models: a new cluster, and in it what the tasks need.

    ``settle`` lets the cluster finish what it does for itself after its start, which is no cost of a workload. Only the
    start-up of a cluster in a job is measured before it.
    """
    cluster = describe_cluster(site, model, number)
    begin = time.time()

    def early() -> None:
        if startup and model is Model.OVER:
            OverSession(site, cluster).create_early_startup_pod()

    with started(cluster, ending, early, limit=site.wait_limit):
        session: ClusterSession
        if model is Model.OVER:
            session = over = OverSession(site, cluster)
            if startup:
                over.startup = over.wait_startup(begin)
            settle()
            if workload:
                over.create_client(claims=claims, node=site.client)
        elif model is Model.PODS:
            session = pods = PodJobSession(site, cluster)
            settle()
            if startup:
                pods.startup = pods.measure_startup(pods.flags)
            if workload:
                pods.create_client(claims=claims, flags=pods.flags)
        else:
            session = jobs = SlurmJobSession(site, cluster)
            jobs.wait_bridge()
            settle()
            if startup:
                jobs.startup = jobs.measure_slurmjob_startup()
        yield session
