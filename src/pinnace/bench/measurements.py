"""What is measured: tasks, the figures that they give, and the commands that they run. Pure data and pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

IPERF3_STREAMS = (1, 8)
FIO_PATTERNS = ("write", "read", "randwrite", "randread")  # the first one creates the file
STREAM_KERNELS = ("copy", "scale", "add", "triad")
ARRAY_CACHES = 4  # STREAM's rule: an array is at least four times as large as all caches
BYTES_PER_ELEMENT = 8


class Model(StrEnum):
    """Who runs the workload: Slurm alone, or pinnace in one of its three ways to combine it with Kubernetes."""

    BARE = "bare"
    OVER = "over"  # a cluster in a job
    PODS = "pods"  # pods as jobs
    SLURMJOB = "slurmjob"  # SlurmJob objects

    @property
    def label(self) -> str:
        return TITLES[self]


TITLES = {
    Model.BARE: "bare Slurm",
    Model.OVER: "cluster in a job",
    Model.PODS: "pod as a job",
    Model.SLURMJOB: "SlurmJob",
}
WITH_PODS = frozenset({Model.OVER, Model.PODS})
ON_HOST = frozenset({Model.BARE, Model.SLURMJOB})
EVERY = frozenset(Model)


class Group(StrEnum):
    """What `--only` chooses, in the order of the paper; the last one is beyond it."""

    STARTUP = "startup"
    CPU = "cpu"
    MEMORY = "memory"
    FIO = "fio"
    NETWORK = "network"
    CLUSTER = "cluster"

    @property
    def label(self) -> str:
        return GROUP_TITLES[self]


GROUP_TITLES = {
    Group.STARTUP: "Start-up",
    Group.CPU: "CPU (sysbench)",
    Group.MEMORY: "Memory bandwidth (STREAM's kernels)",
    Group.FIO: "Storage (fio, blocks of 256 KiB)",
    Group.NETWORK: "Network (iperf3, TCP request/response)",
    Group.CLUSTER: "Beyond the paper",
}


class Better(StrEnum):
    """Which way a figure is better."""

    MORE = "more"
    LESS = "less"


class TaskKind(StrEnum):
    """How a task is done: by a program in the workload, or (the last four) by what the session itself does."""

    SYSBENCH = "sysbench"
    STREAM = "stream"
    FIO = "fio"
    RR = "rr"
    IPERF3 = "iperf3"
    DNSPERF = "dnsperf"
    STARTUP = "startup"
    PODS = "pods"
    REPLICAS = "replicas"
    API = "api"


PROGRAMS = (TaskKind.SYSBENCH, TaskKind.STREAM, TaskKind.FIO, TaskKind.RR, TaskKind.IPERF3, TaskKind.DNSPERF)


class FioPlace(StrEnum):
    """The directory that fio uses. Pods see the first as a hostPath; ``DISK`` is the host's own scratch directory."""

    DIRECTORY = "directory"
    SHARED = "shared"
    DISK = "disk"
    SCRATCH = "scratch"
    ROOT = "root"


class Server(StrEnum):
    """Where the server of a network task runs."""

    HOST = "host"
    POD = "pod"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number. ``baseline`` is the figure of bare Slurm that it is compared with: its own, unless it says so."""

    name: str
    title: str
    unit: str
    better: Better = Better.MORE
    baseline: str = ""
    published: str = ""  # its name among the published ones

    @property
    def of_bare(self) -> str:
        return self.baseline or self.name


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to do in a session, and the figures that come out of it."""

    name: str
    group: Group
    kind: TaskKind
    figures: tuple[Figure, ...]
    models: frozenset[Model] = EVERY
    place: FioPlace | None = None
    server: Server | None = None
    streams: int = 1


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """How long and how large. ``elements`` and ``direct`` depend on the machine, and are found out on it."""

    settle_seconds: float = 10.0  # after a cluster's start, when it still works for itself (spec.METRICS_DELAY)
    cpu_seconds: int = 10
    stream_repetitions: int = 10
    elements: int = 20_000_000
    fio_mib: int = 1024
    fio_seconds: int = 10
    direct: bool = True
    requests: int = 50_000
    iperf3_seconds: int = 30
    dns_seconds: int = 10
    api_seconds: int = 10
    pods: int = 50
    replicas: int = 100


FULL = Parameters()
QUICK = Parameters(
    cpu_seconds=2,
    stream_repetitions=3,
    fio_mib=64,
    fio_seconds=1,
    requests=3000,
    iperf3_seconds=2,
    dns_seconds=2,
    api_seconds=2,
    pods=10,
    replicas=10,
)


def _fio_figure(place: FioPlace, pattern: str) -> Figure:
    kind = f"{'random' if pattern.startswith('rand') else 'sequential'} {pattern.removeprefix('rand')}"
    where, baseline = PLACES[place]
    published = f"fio-{pattern}" if place is FioPlace.DIRECTORY else ""
    name = f"fio-{place}-{pattern}"
    return Figure(
        name=name,
        title=f"{kind}, {where}",
        unit="MiB/s",
        baseline=f"fio-{baseline}-{pattern}" if baseline is not place else "",
        published=published,
    )


# What a place is called, and which one of bare Slurm it is compared with.
PLACES = {
    FioPlace.DIRECTORY: ("shared directory (hostPath)", FioPlace.DIRECTORY),
    FioPlace.SHARED: ("class shared", FioPlace.DIRECTORY),
    FioPlace.DISK: ("the host's disk", FioPlace.DISK),
    FioPlace.SCRATCH: ("class scratch", FioPlace.DISK),
    FioPlace.ROOT: ("the container's root", FioPlace.DISK),
}
_PLACE_MODELS = {
    FioPlace.DIRECTORY: EVERY,
    FioPlace.SHARED: WITH_PODS,
    FioPlace.DISK: ON_HOST,
    FioPlace.SCRATCH: WITH_PODS,
    FioPlace.ROOT: WITH_PODS,
}


def _fio(place: FioPlace) -> Task:
    order = ("read", "write", "randread", "randwrite")  # the paper's
    figures = tuple(_fio_figure(place, pattern) for pattern in order)
    return Task(
        name=f"fio-{place}",
        group=Group.FIO,
        kind=TaskKind.FIO,
        figures=figures,
        place=place,
        models=_PLACE_MODELS[place],
    )


def _network(server: Server) -> tuple[Task, ...]:
    to, models = ("a bare host", EVERY) if server is Server.HOST else ("a pod", frozenset({Model.OVER}))
    tasks = []
    for streams in IPERF3_STREAMS:
        name = f"iperf3-{server}-{streams}"
        figure = Figure(
            name=name,
            title=f"iperf3, {streams} stream{'s' if streams > 1 else ''}, to {to}",
            unit="Mbit/s",
            baseline=f"iperf3-host-{streams}",
            published="iperf3" if streams == 1 and server is Server.HOST else "",
        )
        tasks.append(
            Task(
                name=name,
                group=Group.NETWORK,
                kind=TaskKind.IPERF3,
                figures=(figure,),
                models=models,
                server=server,
                streams=streams,
            )
        )
    name = f"tcp-rr-{server}"
    figure = Figure(
        name=name,
        title=f"TCP request/response of 200 bytes, to {to}",
        unit="µs",
        better=Better.LESS,
        baseline="tcp-rr-host",
        published="tcp-rr" if server is Server.HOST else "",
    )
    tasks.append(
        Task(name=name, group=Group.NETWORK, kind=TaskKind.RR, figures=(figure,), models=models, server=server)
    )  # fmt: skip
    return tuple(tasks)


def _simple(
    name: str,
    group: Group,
    kind: TaskKind,
    title: str,
    unit: str,
    *,
    better: Better = Better.MORE,
    published: str = "",
    models: frozenset[Model] = EVERY,
) -> Task:
    figure = Figure(name=name, title=title, unit=unit, better=better, published=published)
    return Task(name=name, group=group, kind=kind, figures=(figure,), models=models)


_OVER = frozenset({Model.OVER})
TASKS = (
    _simple(
        "startup", Group.STARTUP, TaskKind.STARTUP, "submission to the first line", "s", better=Better.LESS,
        published="startup",
    ),
    _simple("cpu", Group.CPU, TaskKind.SYSBENCH, "primes up to 20,000, all threads", "events/s", published="cpu"),
    Task(
        name="memory",
        group=Group.MEMORY,
        kind=TaskKind.STREAM,
        figures=tuple(
            Figure(
                name=f"memory-{kernel}", title=f"{kernel}, all threads", unit="MB/s",
                published="memory" if kernel == "triad" else "",
            )
            for kernel in STREAM_KERNELS
        ),
    ),
    *(_fio(place) for place in FioPlace),
    *_network(Server.HOST),
    *_network(Server.POD),
    _simple("pods-per-second", Group.CLUSTER, TaskKind.PODS, "jobs or pods that end at once", "1/s"),
    _simple("replicas", Group.CLUSTER, TaskKind.REPLICAS, "until all replicas of a Deployment are ready", "s",
            better=Better.LESS, models=_OVER),
    _simple("dns", Group.CLUSTER, TaskKind.DNSPERF, "DNS look-ups of a Service", "1/s", models=_OVER),
    _simple("api", Group.CLUSTER, TaskKind.API, "API requests (GET, one client)", "1/s", models=_OVER),
)  # fmt: skip
FIGURES = {figure.name: figure for task in TASKS for figure in task.figures}
TASK_OF_FIGURE = {figure.name: task for task in TASKS for figure in task.figures}


def selected(only: Sequence[str], *, hosts: int) -> list[Task]:
    """The tasks of these groups or names, all without any. The network is measured between two hosts."""
    chosen = [task for task in TASKS if not only or task.group in only or task.name in only]
    return [task for task in chosen if hosts > 1 or task.server is None]


def command(task: Task, parameters: Parameters, *, threads: int, address: str = "", port: int = 0) -> list[str]:
    """The program that a task runs in the workload, the same on every side. fio uses its working directory."""
    match task.kind:
        case TaskKind.SYSBENCH:
            limits = ["--cpu-max-prime=20000", f"--threads={threads}", f"--time={parameters.cpu_seconds}"]
            return ["sysbench", "cpu", *limits, "run"]
        case TaskKind.STREAM:
            return ["stream", str(parameters.elements), str(parameters.stream_repetitions)]
        case TaskKind.FIO:
            return fio_argv(parameters)
        case TaskKind.RR:
            return ["rr", "tcp", address, str(port), str(parameters.requests)]
        case TaskKind.IPERF3:
            given = ["--time", str(parameters.iperf3_seconds), "--parallel", str(task.streams)]
            return ["iperf3", "--json", "--client", address, "--port", str(port), *given]
        case TaskKind.DNSPERF:
            return ["dnsperf", "-s", address, "-l", str(parameters.dns_seconds)]
    raise ValueError(f"{task.name} is no program in the workload")


def server_command(task: Task, port: int) -> list[str]:
    """The program that answers a network task; iperf3 serves one client and ends."""
    if task.kind is TaskKind.IPERF3:
        return ["iperf3", "--server", "--one-off", "--port", str(port)]
    return ["rr", "serve-tcp", str(port)]


def fio_argv(parameters: Parameters) -> list[str]:
    """All patterns on one file, one after another."""
    argv = [
        "fio",
        "--output-format=json",
        "--bs=256k",
        "--ioengine=psync",
        f"--size={parameters.fio_mib}m",
        f"--direct={int(parameters.direct)}",
        "--time_based",
        f"--runtime={parameters.fio_seconds}",
        "--filename=data",
    ]
    for pattern in FIO_PATTERNS:
        argv += [f"--name={pattern}", f"--rw={pattern}", "--stonewall"]
        argv += ["--end_fsync=1"] if pattern.endswith("write") else []
    return argv


def direct_probe_argv() -> list[str]:
    """Write a little around the page cache; fails where the file system does not allow that."""
    return ["fio", "--name=probe", "--rw=write", "--bs=256k", "--size=1m", "--direct=1", "--ioengine=psync",
            "--filename=data"]  # fmt: skip


def seconds_of(task: Task, parameters: Parameters) -> float:
    """About how long a task takes at least; its limit is a multiple."""
    match task.kind:
        case TaskKind.SYSBENCH:
            return parameters.cpu_seconds
        case TaskKind.FIO:
            return len(FIO_PATTERNS) * parameters.fio_seconds
        case TaskKind.IPERF3:
            return parameters.iperf3_seconds
        case TaskKind.DNSPERF:
            return parameters.dns_seconds
        case TaskKind.API:
            return parameters.api_seconds
    return 5.0


def stream_elements(*, caches: int, memory: int) -> int:
    """The size of STREAM's arrays: far beyond the caches (bytes), but all three within half of the memory."""
    wanted = max(ARRAY_CACHES * caches // BYTES_PER_ELEMENT, FULL.elements // 2)
    return min(wanted, memory // 2 // 3 // BYTES_PER_ELEMENT)
