"""Whether a node may run its next pod already: from containerd's own records, which are ahead of the kubelet.

A kubelet sees in up to a second that a container has ended, and reports the pod as ended a second later.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.kube.pods import container_statuses, has_ended, is_being_deleted
from pinnace.kube.resources import needs
from pinnace.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.spec import Allocation

KUBELET = Path("/var/lib/kubelet")
CREATED = "pinnace-created"  # a directory in the kubelet's: the ID of each container, by its pod and name


class ContainerdStatus:
    """The status files that containerd's CRI plugin keeps of its containers, on a node for single pods.

    ``containerd`` and ``kubelet`` are the directories of these two on the host.
    """

    def __init__(self, containerd: Path, kubelet: Path) -> None:
        self._containers = containerd / "io.containerd.grpc.v1.cri" / "containers"
        self._created = kubelet / CREATED

    def begin(self) -> None:
        """From now on the IDs of containers are noted when they are created."""
        remove_tree(self._created)
        self._created.mkdir(parents=True)

    def exit_code(self, pod: dict[str, Any], container: str) -> int | None:
        """Of the container that was created last. None if it has not ended, or if it is not known."""
        status = self._status(pod, container)
        return int(status["ExitCode"]) if status.get("FinishedAt") else None

    def started(self, pod: dict[str, Any]) -> float | None:
        """When the first of a pod's containers began, in seconds of the host's clock. None if it is not known."""
        return min(self._times(pod, "StartedAt"), default=None)

    def ended(self, pod: dict[str, Any]) -> float | None:
        """When the last of them that has ended did."""
        return max(self._times(pod, "FinishedAt"), default=None)

    def last_containers(self, pod: dict[str, Any]) -> list[str]:
        """The IDs of its containers, if the pod has ended when these have: none if one may follow, or has not begun."""
        names = [container["name"] for container in containers_of(pod)]
        started = all(self._status(pod, name).get("StartedAt") for name in names)
        if not started or pod["spec"].get("restartPolicy") != "Never":
            return []
        return [self._identifier(pod, name) for name in names]

    def _times(self, pod: dict[str, Any], what: str) -> list[float]:
        statuses = (self._status(pod, container["name"]) for container in pod["spec"]["containers"])
        return [status[what] / 1e9 for status in statuses if status.get(what)]

    def _status(self, pod: dict[str, Any], container: str) -> dict[str, int]:
        with contextlib.suppress(OSError, ValueError):
            status = self._containers / self._identifier(pod, container) / "status"
            found: dict[str, int] = json.loads(status.read_text())
            return found
        return {}

    def _identifier(self, pod: dict[str, Any], container: str) -> str:
        return (self._created / _file_name(pod["metadata"]["uid"], container)).read_text()


def note_created(config: dict[str, Any], container: str, kubelet: Path | None = None) -> None:
    """In the node, on the creation of a container with this ID: note it, if somebody wants to know."""
    about = config.get("annotations", {})
    uid, name = about.get("io.kubernetes.cri.sandbox-uid", ""), about.get("io.kubernetes.cri.container-name", "")
    place = (kubelet or KUBELET) / CREATED
    if uid and name and "/" not in uid + name and place.exists():
        (place / _file_name(uid, name)).write_text(container)


def _file_name(uid: str, container: str) -> str:
    return f"{uid}.{container}"


def is_completed(pod: dict[str, Any], exit_code_of: Callable[[dict[str, Any], str], int | None]) -> bool:
    """Whether a pod has ended, or all of its containers have succeeded, so that it will be reported as ended.

    ``exit_code_of`` tells it of a container, by its name, that has not ended as far as the kubelet knows.
    """
    if pod["spec"].get("restartPolicy") == "Always" or is_being_deleted(pod):
        return has_ended(pod)
    reported = {status["name"]: status["state"].get("terminated") for status in container_statuses(pod)}

    def succeeded(container: str) -> bool:
        terminated = reported.get(container)
        return (terminated["exitCode"] if terminated else exit_code_of(pod, container)) == 0

    return has_ended(pod) or all(succeeded(container["name"]) for container in containers_of(pod))


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def fits_twice(pod: dict[str, Any], allocation: Allocation) -> bool:
    """Whether a kubelet would admit a second such pod before it calls the first one ended."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    if pod["spec"].get("hostNetwork") or any("hostPort" in port for port in ports):
        return False
    wanted = needs(pod)
    offered = {
        "cpu": min(allocation.cpus or sys.maxsize, os.cpu_count() or 1),
        "memory": allocation.memory or sys.maxsize,
    }
    return all(2 * amount <= offered.get(name, 0) for name, amount in wanted.items())
