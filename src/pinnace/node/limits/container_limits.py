"""What a container may use, from the resources that the kubelet asks the runtime for.

containerd writes them into a bundle's ``config.json`` for a cgroup. There is none, so they are kept beside it, in
``limits.json``: containerd removes a bundle with everything in it, and nobody has to remember anything.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pinnace.sandbox.mountinfo import filesystem_of_device, mount_table

LIMITS = "limits.json"  # in a bundle
SHARES_PER_CPU = 1024
GUARANTEED_SCORE = 2  # The kubelet gives at least 3 to pods of other classes, and -997 to Guaranteed ones.
POD_SHM = re.compile(r".*/sandboxes/[^/]+/shm")  # where containerd keeps /dev/shm of a pod
EMPTY_DIR = ("/kubernetes.io~empty-dir/", "/volume-subpaths/")  # in the paths of volumes that may be emptyDirs


@dataclass(frozen=True, kw_only=True)
class ContainerLimits:
    """What one container may use. None is no limit.

    ``cpus`` are whole ones. ``exclusive``: the container is one of a Guaranteed pod and asks for whole CPUs. ``tmpfs``
    are the volumes in memory that it can write to.
    """

    memory: int | None = None
    cpus: int | None = None
    exclusive: bool = False
    tmpfs: tuple[str, ...] = ()

    @staticmethod
    def read(bundle: Path) -> ContainerLimits | None:
        """The limits of a bundle; None if it is gone, or is not a container's."""
        with contextlib.suppress(OSError, ValueError):
            fields = json.loads((bundle / LIMITS).read_text())
            return ContainerLimits(**fields | {"tmpfs": tuple(fields["tmpfs"])})
        return None

    def write(self, bundle: Path) -> None:
        """At once: somebody may be reading the old ones."""
        new = bundle / f"{LIMITS}.new"
        new.write_text(json.dumps(asdict(self)))
        new.rename(bundle / LIMITS)


def whole_cpus(cpu: dict[str, Any]) -> int | None:
    """A quota in whole CPUs, rounded up; None without one."""
    quota, period = cpu.get("quota") or 0, cpu.get("period") or 0
    return -(-quota // period) if quota > 0 and period > 0 else None


def limits_of(resources: dict[str, Any], score: int, own_score: int, tmpfs: tuple[str, ...]) -> ContainerLimits:
    """From OCI's ``linux.resources`` and ``process.oomScoreAdj``.

    The class of the pod is seen from the score: containerd raises it to ours, below which a user cannot go.
    """
    memory, cpu = resources.get("memory") or {}, resources.get("cpu") or {}
    limit, cpus = memory.get("limit") or 0, whole_cpus(cpu)
    guaranteed = score <= max(GUARANTEED_SCORE, own_score)
    whole = cpus is not None and cpu["quota"] == cpus * cpu["period"] and cpu.get("shares") == cpus * SHARES_PER_CPU
    return ContainerLimits(
        memory=limit if limit > 0 else None, cpus=cpus, exclusive=bool(guaranteed and whole and limit > 0), tmpfs=tmpfs
    )


def limits_in(config: dict[str, Any]) -> ContainerLimits:
    """The limits of a container that is created."""
    score = config.get("process", {}).get("oomScoreAdj") or 0
    resources = config["linux"].get("resources") or {}
    return limits_of(resources, score, own_score(), volumes_in_memory(config))


def updated(limits: ContainerLimits, resources: dict[str, Any], score: int) -> ContainerLimits:
    """The limits of a container after ``runc update`` (in-place resize)."""
    return limits_of(resources, score, own_score(), limits.tmpfs)


def own_score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


def volumes_in_memory(config: dict[str, Any]) -> tuple[str, ...]:
    """The tmpfs that a container can write to and shares with its pod: emptyDirs in memory, and /dev/shm.

    With ``hostIPC``, /dev/shm is the node's, and not of the pod.
    """
    return tuple(
        mount["source"]
        for mount in config.get("mounts", ())
        if mount.get("type") == "bind"
        and "ro" not in mount.get("options", ())
        and (POD_SHM.fullmatch(mount["source"]) or _is_memory_volume(mount["source"]))
    )


def _is_memory_volume(path: str) -> bool:
    """Most are directories on disk, and so no mounts: then the table of mounts, which may be long, is not read."""
    with contextlib.suppress(OSError):
        if any(part in path for part in EMPTY_DIR):
            device = Path(path).stat().st_dev
            above = Path(path).parent.stat().st_dev
            return device != above and filesystem_of_device(device, mount_table()) == "tmpfs"
    return False
