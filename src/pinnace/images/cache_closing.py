"""Cleans containerd at the end of a node, so that only content and snapshots of images are left.

No container, sandbox, lease or image name is left. A label keeps the images' content from containerd's garbage
collection. If any check fails, SealError is raised, and the directory is not used again.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from pinnace.images.cache import BLOBS, MAX_AGE, SNAPSHOTS

ROOT = Path("/var/lib/containerd")
GC_ROOT_LABEL = "containerd.io/gc.root"  # its value is the time at which the image was last used
LABEL_INTERVAL = 12 * 3600.0  # seconds after which the label is updated
STEP_TIMEOUT = 10.0  # seconds for each command of ctr, and for each wait
LEASE_POLL_INTERVAL = 0.02  # seconds


class SealError(Exception):
    """containerd could not be cleaned completely."""


@dataclass(frozen=True, kw_only=True)
class Ctr:
    """containerd's command-line client, in the kubelet's containerd namespace."""

    binary: str

    def __call__(self, *args: str) -> list[str]:
        """Run a command and return the lines of its output."""
        argv = [self.binary, "--namespace", "k8s.io", *args]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=STEP_TIMEOUT)
        if result.returncode:
            raise SealError(f"{' '.join(args[:2])}: {result.stderr.strip()}")
        return result.stdout.splitlines()

    def rows(self, *args: str) -> list[list[str]]:
        """Run a command and return the columns of every line but the heading."""
        return [line.split() for line in self(*args)[1:]]


def seal(binary: str, *, containerd: int, others: list[int]) -> None:
    """End ``others``, which use containerd, then clean it and end it too."""
    for pid in others:
        end(pid, signal.SIGKILL)
    ctr = Ctr(binary=binary)
    remove_containers(ctr)
    wait_for_pulls(ctr)
    remove_names(ctr, time.time())
    check(ctr, ROOT)
    end(containerd, signal.SIGTERM)


def remove_containers(ctr: Ctr) -> None:
    sandboxes = [row[0] for row in ctr.rows("sandboxes", "list")]
    if tasks := [row[0] for row in ctr.rows("tasks", "list") if row[0] not in sandboxes]:
        ctr("tasks", "delete", "--force", *tasks)  # a pod may have had no grace period, or not heeded it
    if sandboxes:
        ctr("sandboxes", "remove", "--force", *sandboxes)
    if containers := ctr("containers", "list", "--quiet"):
        ctr("containers", "delete", *containers)
    if leases := set(ctr("leases", "list", "--quiet")) & set(sandboxes):
        ctr("leases", "delete", *sorted(leases))


def wait_for_pulls(ctr: Ctr) -> None:
    """Wait until no lease is left: an aborted pull holds one until containerd has noticed."""
    deadline = time.monotonic() + STEP_TIMEOUT
    while ctr("leases", "list", "--quiet"):
        if time.monotonic() > deadline:
            raise SealError("something is still using containerd")
        time.sleep(LEASE_POLL_INTERVAL)


def remove_names(ctr: Ctr, now: float) -> None:
    """Label the content of recently used images to be kept, and delete all image names."""
    images = ctr.rows("images", "list")
    used = {row[2] for row in images}
    for digest, value in labels(used, last_uses(ctr("content", "list")), now).items():
        ctr("content", "label", digest, f"{GC_ROOT_LABEL}={value}")
    if images:
        ctr("images", "delete", "--sync", *(row[0] for row in images))


def last_uses(listing: list[str]) -> dict[str, float]:
    """The times of last use of the labelled images, by digest, from ``ctr content list``."""
    found = {}
    for line in listing[1:]:
        for label in line.split("\t")[-1].split(","):
            name, _, value = label.partition("=")
            if name == GC_ROOT_LABEL:
                found[line.split("\t")[0]] = float(value)
    return found


def labels(used: set[str], before: dict[str, float], now: float) -> dict[str, str]:
    """The labels to write, by digest. An empty value removes the label."""
    fresh = {digest: f"{now:.0f}" for digest in used if before.get(digest, 0.0) < now - LABEL_INTERVAL}
    return fresh | {digest: "" for digest, at in before.items() if at < now - MAX_AGE and digest not in used}


def check(ctr: Ctr, root: Path) -> None:
    """Check that no other object is left, and that containerd's databases match its files."""
    for kind in ("sandboxes", "containers", "leases", "images"):
        if left := ctr.rows(kind, "list"):
            raise SealError(f"{len(left)} {kind} are left")
    snapshots = ctr.rows("snapshots", "list")
    if any(row[-1] != "Committed" for row in snapshots):
        raise SealError("snapshots of containers are left")
    if len(snapshots) != len(names_in(root / SNAPSHOTS)):
        raise SealError("the snapshots are not those that containerd knows")
    if {digest.removeprefix("sha256:") for digest in ctr("content", "list", "--quiet")} != names_in(root / BLOBS):
        raise SealError("the content is not what containerd knows")


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def end(pid: int, number: int) -> None:
    """End a process, which need not be our child, and wait until it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, number)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(STEP_TIMEOUT * 1000):
            raise SealError(f"process {pid} does not end")
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
