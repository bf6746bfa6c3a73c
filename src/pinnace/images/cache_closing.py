"""The last thing that a node does with containerd: leave in it nothing but content and snapshots of images.

No container, sandbox, lease or name is left. A label keeps the images' content from containerd's own collection of
garbage. If anything is not as it should be, this fails, and the directory is not used again.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from pinnace.images.cache import AGE, SNAPSHOTS

ROOT = Path("/var/lib/containerd")
BLOBS = "io.containerd.content.v1.content/blobs/sha256"
KEEP = "containerd.io/gc.root"  # its value is the time at which the image was last used
OFTEN = 12 * 3600.0  # seconds after which that is written again
LIMIT = 10.0  # seconds for each thing that we wait for
PAUSE = 0.02


class SealError(Exception):
    """It could not be left in order."""


@dataclass(frozen=True, kw_only=True)
class Ctr:
    """containerd's own client, in the kubelet's namespace."""

    binary: str

    def __call__(self, *words: str) -> list[str]:
        """The lines of a command's answer."""
        argv = [self.binary, "--namespace", "k8s.io", *words]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)
        if result.returncode:
            raise SealError(f"{' '.join(words[:2])}: {result.stderr.strip()}")
        return result.stdout.splitlines()

    def rows(self, *words: str) -> list[list[str]]:
        """The words of every line but the heading."""
        return [line.split() for line in self(*words)[1:]]


def seal(binary: str, *, containerd: int, others: list[int]) -> None:
    """Clean containerd and end it, when ``others``, who use it, have ended."""
    for pid in others:
        end(pid, signal.SIGKILL)
    ctr = Ctr(binary=binary)
    forget_containers(ctr)
    wait_for_pulls(ctr)
    forget_names(ctr, time.time())
    check(ctr, ROOT)
    end(containerd, signal.SIGTERM)


def forget_containers(ctr: Ctr) -> None:
    sandboxes = [row[0] for row in ctr.rows("sandboxes", "list")]
    if sandboxes:
        ctr("sandboxes", "remove", "--force", *sandboxes)
    if containers := ctr("containers", "list", "--quiet"):
        ctr("containers", "delete", *containers)
    if leases := set(ctr("leases", "list", "--quiet")) & set(sandboxes):
        ctr("leases", "delete", *sorted(leases))


def wait_for_pulls(ctr: Ctr) -> None:
    """A pull that was broken off holds a lease until containerd has noticed."""
    deadline = time.monotonic() + LIMIT
    while ctr("leases", "list", "--quiet"):
        if time.monotonic() > deadline:
            raise SealError("something is still using containerd")
        time.sleep(PAUSE)


def forget_names(ctr: Ctr, now: float) -> None:
    """Keep the content of the images that were used lately, and no name."""
    images = ctr.rows("images", "list")
    used = {row[2] for row in images}
    for digest, value in labels(used, kept(ctr("content", "list")), now).items():
        ctr("content", "label", digest, f"{KEEP}={value}")
    if images:
        ctr("images", "delete", "--sync", *(row[0] for row in images))


def kept(listing: list[str]) -> dict[str, float]:
    """When the images that are kept were last used, by digest, from ``ctr content list``."""
    found = {}
    for line in listing[1:]:
        for label in line.split("\t")[-1].split(","):
            name, _, value = label.partition("=")
            if name == KEEP:
                found[line.split("\t")[0]] = float(value)
    return found


def labels(used: set[str], before: dict[str, float], now: float) -> dict[str, str]:
    """The labels to be written. An empty one is taken off."""
    fresh = {digest: f"{now:.0f}" for digest in used if before.get(digest, 0.0) < now - OFTEN}
    return fresh | {digest: "" for digest, at in before.items() if at < now - AGE and digest not in used}


def check(ctr: Ctr, root: Path) -> None:
    """That nothing is left, and that what containerd believes to have is there."""
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
    """End a process that may not be a child of ours, and wait until it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, number)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(LIMIT * 1000):
            raise SealError(f"process {pid} does not end")
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
