"""Pods that are bound to the node of a job while the pod before them still runs.

A kubelet needs about a second to prepare a pod: its volumes, its sandbox, its network, its first container. It does
that while the pod before runs, and the container is started when those of that one have ended, or HOLD_LIMIT is over.
For each pod that is held there is a file, in a directory that the pod runner has on the host and init in the node. The
pod is held until the file is removed, or until the containers have ended whose IDs are in the file: in the node that is
seen at once, by the pod runner only when containerd has cleaned up after them.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

KUBELET = Path("/var/lib/kubelet")
DIRECTORY = "pinnace-held"  # in the kubelet's directory
MARK = "pinnace-held"  # a file in the bundle of a container whose start waits: the UID of its pod
HOLD_INTERVAL = 0.005  # seconds between looks whether a pod is still held
ENDED = {"Z", "X"}  # states of a process in /proc
HOLD_LIMIT = 100.0  # seconds; a kubelet that has waited for two minutes would call the pod failed


class HeldPods:
    """The pod runner's side. ``kubelet`` is the kubelet's directory on the host."""

    def __init__(self, kubelet: Path) -> None:
        self.directory = kubelet / DIRECTORY

    def hold(self, uid: str, after: Sequence[str] = ()) -> None:
        """Until it is released, or the containers with these IDs have ended, if there are any."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / uid).write_text(" ".join(after))

    def release(self, uid: str) -> None:
        (self.directory / uid).unlink(missing_ok=True)

    def clear(self) -> None:
        """Hold none: who has held them is gone."""
        remove_tree(self.directory)


def mark(config: dict[str, Any], bundle: Path, kubelet: Path | None = None) -> None:
    """In the node, when a container is created: if its pod is held, have its start wait."""
    about = config.get("annotations", {})
    uid = about.get("io.kubernetes.cri.sandbox-uid", "")
    if not uid or "/" in uid or about.get("io.kubernetes.cri.container-type") != "container":
        return
    if ((kubelet or KUBELET) / DIRECTORY / uid).exists():
        (bundle / MARK).write_text(uid)


def wait(bundle: Path, kubelet: Path | None = None, *, limit: float | None = None) -> None:
    """In the node, when a container is started: wait until its pod is not held any more, or a limit is over."""
    marked = bundle / MARK
    if not marked.exists():
        return
    held = (kubelet or KUBELET) / DIRECTORY / marked.read_text()
    deadline = time.monotonic() + (HOLD_LIMIT if limit is None else limit)
    with contextlib.suppress(FileNotFoundError):
        before = [bundle.parent / container for container in held.read_text().split()]
        while held.exists() and time.monotonic() < deadline:
            if before and not any(map(runs, before)):
                return
            time.sleep(HOLD_INTERVAL)


def runs(bundle: Path) -> bool:
    """Whether the first process of a container that was started has not ended. Its shim has noted its pid."""
    try:
        process = Path("/proc") / (bundle / "init.pid").read_text() / "stat"
        return process.read_text().rpartition(")")[2].split()[0] not in ENDED
    except (FileNotFoundError, ProcessLookupError):
        return False
