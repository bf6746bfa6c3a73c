"""What is measured, between whom, and what the goals are. Pure data, and the commands that measure it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MEASUREMENTS", "RR_PORT", "Measurement", "NetworkPath", "Target", "Unit", "command"]

RR_PORT = 5300
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


class Unit(StrEnum):
    """What a figure is; of a throughput more is better, of a time less."""

    THROUGHPUT = "Gbit/s"
    TIME = "µs"

    @property
    def cpu_unit(self) -> str:
        return "s/GB" if self is Unit.THROUGHPUT else "s/1,000 requests"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One figure of the network. ``options`` are those of iperf3, or the mode of ``rr``.

    A goal is a limit for the ratio to the bare counterpart: the least for a throughput, the most for a time.
    """

    what: str
    target: Target
    unit: Unit
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
    return Measurement(what=what, target=target, unit=Unit.THROUGHPUT, options=options, goals=goals)


def latency(what: str, mode: str, target: Target, **goals: float) -> Measurement:
    by_path = {NetworkPath(path): goal for path, goal in goals.items()}
    return Measurement(what=what, target=target, unit=Unit.TIME, options=(mode,), goals=by_path)


MEASUREMENTS = (
    throughput("TCP, 1 stream,", Target.HOST, native=0.95),
    throughput("TCP, 8 streams,", Target.HOST, "--parallel", "8", native=0.95),
    throughput("TCP, reverse,", Target.HOST, "--reverse", native=0.95),
    throughput("TCP, 1 stream,", Target.POD, native=0.90),
    throughput("TCP, 1 stream,", Target.SERVICE, native=0.90),
    latency("TCP request/response", "tcp", Target.HOST, native=1.10, general=2.2),
    latency("TCP request/response", "tcp", Target.POD, native=1.10, general=2.2),
    latency("TCP request/response", "tcp", Target.SERVICE, native=1.10, general=2.2),
    latency("TCP request/response", "tcp", Target.NEIGHBOUR),
    latency("connect, request, close", "connect", Target.HOST, native=1.5),
    latency("connect, request, close", "connect", Target.POD, native=2.0),
    latency("connect, request, close", "connect", Target.SERVICE, native=2.0),
    # UDP is never handed over to the host: its goals are those of both paths.
    latency("UDP request/response", "udp", Target.HOST, native=1.5, general=1.5),
    latency("UDP request/response", "udp", Target.POD, native=2.2, general=2.2),
    latency("UDP request/response", "udp", Target.SERVICE, native=2.2, general=2.2),
)


def command(measurement: Measurement, address: str, *, rr: str, seconds: int, requests: int) -> list[str]:
    """The client, which is the same on a host and in a pod; ``rr`` is the path of our program on both."""
    if measurement.unit is Unit.THROUGHPUT:
        affinity = f"{CLIENT_CPU},{SERVER_CPU}"
        iperf3 = ["iperf3", "--json", "--affinity", affinity, "--time", str(seconds), *measurement.options]
        return [rr, "cpu", *iperf3, "--client", address]
    return [rr, *measurement.options, address, str(RR_PORT), str(requests)]
