"""What the containers of a node use, from /proc, in the form in which metrics-server asks kubelets for it.

The kubelet measures cgroups, and there is one for all here (see ``runc_wrapper``), so what it says of every pod is what
the whole job uses. This counts processes instead. It answers metrics-server, which it knows by its certificate.
"""

from __future__ import annotations

import ssl
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from pinnace.controlplane import one_client
from pinnace.controlplane.metrics import USAGE_PATH, USAGE_PORT, USER
from pinnace.node.containers import PROC, read_containers
from pinnace.node.processes import TICKS, owners, read_processes, total

if TYPE_CHECKING:
    from pinnace.spec import NodeSpec

MIN_CPU_SECONDS = 1 / TICKS  # metrics-server takes zero for "not measured", and the kernel counts whole ticks


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


def serve(node: NodeSpec) -> None:
    UsageHandler.meter = Meter()
    one_client.serve(UsageHandler, node, USAGE_PORT)
