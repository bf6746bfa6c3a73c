"""The containers of a node, as their bundles describe them, and which processes are in which."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinnace.controlplane.tasks import TASKS

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Container:
    namespace: str
    pod: str
    name: str
    pid: int


def is_container(config: dict[str, Any]) -> bool:
    """Whether a bundle is that of a container, and not of one that only holds a pod's namespaces."""
    return bool(config.get("annotations", {}).get("io.kubernetes.cri.container-type") == "container")


def read_container(bundle: Path) -> Container | None:
    """The container of a bundle. None if it only holds a pod's namespaces, has just ended, or has not begun."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        config = json.loads((bundle / "config.json").read_text())
        notes = config["annotations"]
        if is_container(config):
            return Container(
                namespace=notes["io.kubernetes.cri.sandbox-namespace"],
                pod=notes["io.kubernetes.cri.sandbox-name"],
                name=notes["io.kubernetes.cri.container-name"],
                pid=int((bundle / "init.pid").read_text()),
            )
    return None


def read_containers(tasks: Path = TASKS) -> list[Container]:
    """The running containers, without those that only hold a pod's namespaces."""
    bundles = tasks.iterdir() if tasks.is_dir() else ()
    return [container for bundle in bundles if (container := read_container(bundle))]


def mount_namespace(pid: int | str) -> str:
    """The mount namespace: every container has its own, and what is executed in it later joins it."""
    return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115 - read for every process, and Path takes as long again


def all_pids() -> set[str]:
    """The processes of the node, as /proc names them."""
    return set(filter(str.isdigit, os.listdir(PROC)))  # noqa: PTH208 - as above


def processes_in(spaces: set[str]) -> dict[str, list[int]]:
    """The processes of each of these mount namespaces."""
    found: dict[str, list[int]] = {space: [] for space in spaces}
    for pid in all_pids():
        with contextlib.suppress(OSError):  # it has ended
            if (space := mount_namespace(pid)) in found:
                found[space].append(int(pid))
    return found
