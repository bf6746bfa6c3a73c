"""When a pod has ended, how, and when another may come."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pinnace.kube.resources import needs
from pinnace.podjobs import pod_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.spec import Share


def has_ended(pod: dict[str, Any]) -> bool:
    """Whether a pod's kubelet has said the last word. Of one that is being deleted, that is that it is gone."""
    return pod_status.is_terminal(pod) and "deletionTimestamp" not in pod["metadata"]


class Notes:
    """What containerd writes down of its containers, in its own directory."""

    def __init__(self, containerd: Path) -> None:
        self.directory = containerd / "io.containerd.grpc.v1.cri" / "containers"

    def exit_code(self, container: str) -> int | None:
        """Of a container by the name that the API has for it: containerd://<id>. None if it has not ended."""
        with contextlib.suppress(OSError, ValueError):
            about = json.loads((self.directory / container.rpartition("/")[2] / "status").read_text())
            return int(about["ExitCode"]) if about.get("FinishedAt") else None
        return None


def is_spent(pod: dict[str, Any], noted: Callable[[str], int | None]) -> bool:
    """Whether all of a pod's containers have succeeded. Its kubelet sees it in a second, and calls it ended in two."""
    if pod["spec"].get("restartPolicy") == "Always" or "deletionTimestamp" in pod["metadata"]:
        return has_ended(pod)

    def code(status: dict[str, Any]) -> int | None:
        if "running" in status["state"]:
            return noted(status.get("containerID", ""))
        ended: dict[str, int] = status["state"].get("terminated", {})
        return ended.get("exitCode")

    statuses = _statuses(pod)
    return has_ended(pod) or (bool(statuses) and all(code(status) == 0 for status in statuses))


def room_for_two(pod: dict[str, Any], share: Share) -> bool:
    """Whether a kubelet would let a second such pod in before it calls the first one ended."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    if pod["spec"].get("hostNetwork") or any("hostPort" in port for port in ports):
        return False
    wanted = needs(pod)
    offered = {"cpu": min(share.cpus or sys.maxsize, os.cpu_count() or 1), "memory": share.memory or sys.maxsize}
    return all(2 * amount <= offered.get(name, 0) for name, amount in wanted.items())


def container_code(pod: dict[str, Any]) -> int:
    """The exit code of a pod: the first of its containers' that is not 0."""
    codes = [int(status["state"].get("terminated", {}).get("exitCode", 0)) for status in _statuses(pod)]
    failed = 1 if pod["status"].get("phase") == "Failed" else 0
    return next((code for code in codes if code), failed) if failed else 0


def _statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Of all its containers."""
    return [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]
