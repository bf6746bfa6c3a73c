"""What is measured, between whom, and what the goals are. Pure data, and the commands that measure it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MEASUREMENTS", "PYTHON_PORT", "RR_PORT", "SERVER_CPU", "Client", "Measurement", "NetworkPath", "Target", "Unit",
    "command",
]  # fmt: skip

RR_PORT, PYTHON_PORT = 5300, 5301
# The processors of the client's host, n2, and of the servers' hosts, n1 and n3 (``testbed up --own-processors``).
CLIENT_CPU, SERVER_CPU = 1, 0


class NetworkPath(StrEnum):
    """What the packets go through."""

    BARE = "bare"
    NATIVE = "native"
    GENERAL = "general"


class Target(StrEnum):
    """Whom a pod on n2 talks to. In the bare counterpart, the host n2 talks to the host that the target is on."""

    HOST = "a bare host"
    POD = "a pod"
    SERVICE = "a Service"
    NEIGHBOUR = "a pod of the same node"


class Client(StrEnum):
    """The program that measures, and the container of the client pod that it runs in."""

    IPERF3 = "iperf3"
    RR = "rr"
    PYTHON = "python"


class Unit(StrEnum):
    """What a figure is; of a throughput more is better, of a time less."""

    THROUGHPUT = "Gbit/s"
    TIME = "µs"

    @property
    def cpu_unit(self) -> str:
        return "s/GB" if self is Unit.THROUGHPUT else "s/1,000 requests"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One figure of the network. ``options`` are those of iperf3, or the mode of the others.

    A goal is a limit for the ratio to the bare counterpart: the least for a throughput, the most for a time.
    """

    what: str
    target: Target
    unit: Unit
    client: Client
    options: tuple[str, ...]
    goals: Mapping[NetworkPath, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.what} to {self.target}"

    def meets(self, path: NetworkPath, ratio: float) -> bool | None:
        """Whether a ratio reaches the goal of its path; None if it has no goal."""
        goal = self.goals.get(path)
        if goal is None:
            return None
        return ratio >= goal if self.unit is Unit.THROUGHPUT else ratio <= goal


def throughput(what: str, target: Target, *options: str, native: float) -> Measurement:
    goals = {NetworkPath.NATIVE: native, NetworkPath.GENERAL: 0.42}
    return Measurement(
        what=what, target=target, unit=Unit.THROUGHPUT, client=Client.IPERF3, options=options, goals=goals
    )


def latency(what: str, mode: str, target: Target, **goals: float) -> list[Measurement]:
    """Between ordinary programs, and between programs that add nothing to what the network takes."""
    by_path = {NetworkPath(path): goal for path, goal in goals.items()}
    return [
        Measurement(what=name, target=target, unit=Unit.TIME, client=client, options=(mode,), goals=by_path)
        for name, client in ((what, Client.PYTHON), (f"{what}, tight,", Client.RR))
    ]


MEASUREMENTS = (
    throughput("TCP, 1 stream,", Target.HOST, native=0.95),
    throughput("TCP, 8 streams,", Target.HOST, "--parallel", "8", native=0.95),
    throughput("TCP, reverse,", Target.HOST, "--reverse", native=0.95),
    throughput("TCP, 1 stream,", Target.POD, native=0.90),
    throughput("TCP, 1 stream,", Target.SERVICE, native=0.90),
    *latency("TCP request/response", "tcp", Target.HOST, native=1.10, general=2.2),
    *latency("TCP request/response", "tcp", Target.POD, native=1.10, general=2.2),
    *latency("TCP request/response", "tcp", Target.SERVICE, native=1.10, general=2.2),
    *latency("TCP request/response", "tcp", Target.NEIGHBOUR),
    *latency("connect, request, close", "connect", Target.HOST, native=1.5),
    *latency("connect, request, close", "connect", Target.POD, native=2.0),
    *latency("connect, request, close", "connect", Target.SERVICE, native=2.0),
    # UDP is never handed over to the host: its goals are those of both paths.
    *latency("UDP request/response", "udp", Target.HOST, native=1.5, general=1.5),
    *latency("UDP request/response", "udp", Target.POD, native=2.2, general=2.2),
    *latency("UDP request/response", "udp", Target.SERVICE, native=2.2, general=2.2),
)


def command(measurement: Measurement, address: str, *, rr: str, python: str, seconds: int, requests: int) -> list[str]:
    """The client, which is the same on a host and in a pod; ``rr`` and ``python`` are paths of our programs on both."""
    on_client = [rr, "on", str(CLIENT_CPU)]
    if measurement.client is Client.IPERF3:
        affinity = f"{CLIENT_CPU},{SERVER_CPU}"
        iperf3 = ["iperf3", "--json", "--affinity", affinity, "--time", str(seconds), *measurement.options]
        return [rr, "cpu", *iperf3, "--client", address]
    if measurement.client is Client.PYTHON:
        program, port = ["cpu", "python3", python], PYTHON_PORT
    else:
        program, port = [], RR_PORT
    return [*on_client, *program, *measurement.options, address, str(port), str(requests)]
