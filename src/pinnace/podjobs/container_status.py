"""Whether a node may run its next pod already: from containerd's own records, which are ahead of the kubelet.

A kubelet sees in up to a second that a container has ended, and reports the pod as ended a second later.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pinnace.kube.pods import container_statuses, has_ended, is_being_deleted
from pinnace.kube.resources import needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.spec import Share


class ContainerdStatus:
    """The status files that containerd's CRI plugin keeps of its containers, in containerd's own directory."""

    def __init__(self, containerd: Path) -> None:
        self.directory = containerd / "io.containerd.grpc.v1.cri" / "containers"

    def exit_code(self, container: str) -> int | None:
        """Of a container by its ID in the API, containerd://<id>. None if it has not ended."""
        with contextlib.suppress(OSError, ValueError):
            status = json.loads((self.directory / container.rpartition("/")[2] / "status").read_text())
            return int(status["ExitCode"]) if status.get("FinishedAt") else None
        return None


def is_completed(pod: dict[str, Any], exit_code_of: Callable[[str], int | None]) -> bool:
    """Whether a pod has ended, or all of its containers have succeeded, so that it will be reported as ended.

    ``exit_code_of`` tells it of a container that runs as far as the kubelet knows, by its ID.
    """
    if pod["spec"].get("restartPolicy") == "Always" or is_being_deleted(pod):
        return has_ended(pod)

    def code(status: dict[str, Any]) -> int | None:
        if "running" in status["state"]:
            return exit_code_of(status.get("containerID", ""))
        terminated: dict[str, int] = status["state"].get("terminated", {})
        return terminated.get("exitCode")

    statuses = container_statuses(pod)
    return has_ended(pod) or (bool(statuses) and all(code(status) == 0 for status in statuses))


def fits_twice(pod: dict[str, Any], share: Share) -> bool:
    """Whether a kubelet would admit a second such pod before it calls the first one ended."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    if pod["spec"].get("hostNetwork") or any("hostPort" in port for port in ports):
        return False
    wanted = needs(pod)
    offered = {"cpu": min(share.cpus or sys.maxsize, os.cpu_count() or 1), "memory": share.memory or sys.maxsize}
    return all(2 * amount <= offered.get(name, 0) for name, amount in wanted.items())
