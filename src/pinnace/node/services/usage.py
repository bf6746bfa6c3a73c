"""What the containers of a node use, from /proc, in the form in which metrics-server asks kubelets for it.

The kubelet measures cgroups, and there is one for all here (see ``runc_wrapper``), so what it says of every pod is what
the whole job uses. This counts processes instead. It answers metrics-server, which it knows by its certificate.

    python -m pinnace.node.services.usage ADDRESS CERTIFICATE KEY CA CLIENT
"""

from __future__ import annotations

import contextlib
import os
import ssl
import sys
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from pinnace.controlplane.metrics import USAGE_PATH, USAGE_PORT, USER
from pinnace.network import one_client
from pinnace.node.containers import PROC, mount_namespace, read_containers

TICKS = os.sysconf("SC_CLK_TCK")
MIN_CPU_SECONDS = 1 / TICKS  # metrics-server takes zero for "not measured", and the kernel counts whole ticks


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process, with the time of its children that have ended."""

    pid: int
    parent: int
    mounts: str  # the mount namespace: every container has its own, and what is executed in it later joins it
    cpu: float  # seconds
    started: float  # seconds after the host's start
    private: int  # bytes
    shared: int  # bytes of files and shared memory


@dataclass(frozen=True, kw_only=True)
class Usage:
    cpu: float
    memory: int


def parse_process(pid: int, stat: str, status: str, mounts: str) -> Process:
    """From ``/proc/PID/stat`` and ``status``, see proc(5)."""
    fields = stat.rpartition(")")[2].split()  # the name before it may have anything in it
    sizes = dict(line.split(":", 1) for line in status.split("\n") if line.startswith("Rss"))
    anonymous, files, shared = (
        int(sizes.get(name, "0").split()[0]) << 10 for name in ("RssAnon", "RssFile", "RssShmem")
    )
    return Process(
        pid=pid,
        parent=int(fields[1]),
        mounts=mounts,
        cpu=sum(map(int, fields[11:15])) / TICKS,
        started=int(fields[19]) / TICKS,
        private=anonymous,
        shared=files + shared,
    )


def read_processes() -> dict[int, Process]:
    found = {}
    for path in PROC.iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                stat, status = (
                    (path / "stat").read_text(errors="replace"),
                    (path / "status").read_text(errors="replace"),
                )
                found[int(path.name)] = parse_process(int(path.name), stat, status, mount_namespace(path.name))
    return found


def owners(processes: dict[int, Process], firsts: set[int]) -> dict[int, int]:
    """For every process of a container, the container's first one: by mount namespace, else that of its parent."""
    spaces = {processes[pid].mounts: pid for pid in firsts if pid in processes}
    found: dict[int, int] = {}
    for pid in sorted(processes):
        line = [pid]
        while (process := processes.get(line[-1])) and process.mounts not in spaces and process.parent not in line:
            line.append(process.parent)
        if process and process.mounts in spaces:
            found[pid] = spaces[process.mounts]
    return found


def total(processes: list[Process]) -> Usage:
    """CPU is exact while parents wait for their children. What is shared is taken to be shared by all."""
    private, shared = sum(p.private for p in processes), max((p.shared for p in processes), default=0)
    return Usage(cpu=sum(p.cpu for p in processes), memory=private + shared)


class Meter:
    """Measures, and remembers, because a counter must never go back."""

    def __init__(self) -> None:
        self._highest: dict[int, float] = {}
        now = (PROC / "uptime").read_text().split()[0]
        self._boot = time.time() - float(now)

    def text(self) -> str:
        """All of it, as the kubelet's ``/metrics/resource`` has it."""
        processes, containers = read_processes(), read_containers()
        belongs = owners(processes, {container.pid for container in containers})
        everything = total(list(processes.values()))
        lines = [
            f"node_cpu_usage_seconds_total {self._counted(0, everything.cpu):.2f}",
            f"node_memory_working_set_bytes {everything.memory}",
        ]
        for container in containers:
            if container.pid not in processes:
                continue
            used = total([processes[pid] for pid, first in belongs.items() if first == container.pid])
            labels = f'{{container="{container.name}",namespace="{container.namespace}",pod="{container.pod}"}}'
            cpu = self._counted(container.pid, max(used.cpu, MIN_CPU_SECONDS))
            started = self._boot + processes[container.pid].started
            lines += [
                f"container_cpu_usage_seconds_total{labels} {cpu:.2f}",
                f"container_memory_working_set_bytes{labels} {used.memory}",
                f"container_start_time_seconds{labels} {started:.2f}",
            ]
        self._highest = {pid: cpu for pid, cpu in self._highest.items() if pid == 0 or pid in processes}
        return "\n".join(lines) + "\n"

    def _counted(self, pid: int, cpu: float) -> float:
        self._highest[pid] = max(cpu, self._highest.get(pid, 0.0))
        return self._highest[pid]


class UsageHandler(BaseHTTPRequestHandler):
    """Answers metrics-server, and nobody else."""

    meter: Meter
    timeout = 10

    def do_GET(self) -> None:
        if not isinstance(self.connection, ssl.SSLSocket) or one_client.common_name(self.connection) != USER:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path != USAGE_PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            body = self.meter.text().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


def serve(address: str, certificate: str, key: str, ca: str, client: str) -> None:
    UsageHandler.meter = Meter()
    one_client.serve(UsageHandler, (address, USAGE_PORT), certificate=certificate, key=key, ca=ca, client=client)


if __name__ == "__main__":
    serve(*sys.argv[1:])
