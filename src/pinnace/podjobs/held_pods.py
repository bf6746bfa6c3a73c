"""Pods that are bound to the node of a job while the pod before them still runs.

A kubelet needs more than half a second to prepare a pod: its volumes, its sandbox, its network. It does that while the
pod before runs, and the containers of the next one are created when those of that one have ended, or HOLD_LIMIT is
over. For each pod that is held there is a file, in a directory that the pod runner has on the host and init in
the node.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pinnace.removal import remove_tree

KUBELET = Path("/var/lib/kubelet")
DIRECTORY = "pinnace-held"  # in the kubelet's directory
HOLD_INTERVAL = 0.01  # seconds between looks whether a pod is still held
HOLD_LIMIT = 100.0  # seconds; a kubelet that has waited for two minutes would call the pod failed


class HeldPods:
    """The pod runner's side. ``kubelet`` is the kubelet's directory on the host."""

    def __init__(self, kubelet: Path) -> None:
        self.directory = kubelet / DIRECTORY

    def hold(self, uid: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / uid).touch()

    def release(self, uid: str) -> None:
        (self.directory / uid).unlink(missing_ok=True)

    def clear(self) -> None:
        """Hold none: who has held them is gone."""
        remove_tree(self.directory)


def wait(config: dict[str, Any], kubelet: Path | None = None, *, limit: float | None = None) -> None:
    """In the node: wait until the pod of a container that is created is not held any more, or a limit is over."""
    about = config.get("annotations", {})
    uid = about.get("io.kubernetes.cri.sandbox-uid", "")
    if not uid or "/" in uid or about.get("io.kubernetes.cri.container-type") != "container":
        return
    deadline = time.monotonic() + (HOLD_LIMIT if limit is None else limit)
    while ((kubelet or KUBELET) / DIRECTORY / uid).exists() and time.monotonic() < deadline:
        time.sleep(HOLD_INTERVAL)
