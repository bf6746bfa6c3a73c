"""What the wrapper of runc asks for in the life of a container: its limits are noted, and its CPUs chosen."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.node.containers import is_container
from pinnace.node.limits import affinity
from pinnace.node.limits.container_limits import ContainerLimits, limits_in, updated
from pinnace.node.limits.cpu_allocation import format_cpu_list

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.node.limits.affinity import CpuPool

LOCK = "cpus.lock"  # in the node's /run/pinnace
FIFO = "limits"  # there too: wakes the service that watches, with the id of a container


@dataclass(frozen=True, kw_only=True)
class Limiter:
    """``tasks`` has the bundles. ``run_directory`` is the node's."""

    pool: CpuPool
    tasks: Path
    run_directory: Path

    def created(self, config: dict[str, Any], bundle: Path) -> None:
        """Note the limits of a container before its bundle loses them."""
        if is_container(config):
            self._changed(limits_in(config), bundle)

    def started(self, bundle: Path) -> None:
        """A container's first process is there, and waits. runc has given it all CPUs."""
        if cpus := affinity.assigned(bundle):
            affinity.confine(int((bundle / "init.pid").read_text()), cpus)

    def updated(self, resources: dict[str, Any], bundle: Path) -> None:
        """A container was given other resources (in-place resize)."""
        if limits := ContainerLimits.read(bundle):
            score = json.loads((bundle / "config.json").read_text())["process"].get("oomScoreAdj") or 0
            self._changed(updated(limits, resources, score), bundle)

    def _changed(self, limits: ContainerLimits, bundle: Path) -> None:
        limits.write(bundle)
        affinity.rebalance(self.tasks, self.pool, self.run_directory / LOCK)
        with contextlib.suppress(OSError):  # The service looks at all bundles when it starts.
            fifo = os.open(self.run_directory / FIFO, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fifo, f"{bundle.name}\n".encode())
            finally:
                os.close(fifo)


def with_affinity(process: dict[str, Any], bundle: Path) -> dict[str, Any]:
    """A process that is executed in a container, on the container's CPUs."""
    cpus = affinity.assigned(bundle)
    return process | {"execCPUAffinity": {"final": format_cpu_list(cpus)}} if cpus else process
