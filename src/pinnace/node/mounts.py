"""The file systems of a node, as a plan that can be described before it is executed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.node.linux import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_REC, mount

if TYPE_CHECKING:
    from pathlib import Path

VOLUMES = "/var/lib/pinnace/volumes"  # of the storage class `scratch`
ON_SCRATCH = {"kubelet": "/var/lib/kubelet", "containerd": "/var/lib/containerd", "log": "/var/log", "volumes": VOLUMES}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One call of mount(2). ``make`` are directories to create in it afterwards."""

    target: str
    source: str = "none"
    filesystem: str = ""
    flags: int = 0
    data: str = ""
    make: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"{self.source} on {self.target} {self.filesystem or 'bind'} {self.data}".rstrip()

    def execute(self) -> None:
        mount(self.source, self.target, self.filesystem, self.flags, self.data)
        for directory in self.make:
            os.makedirs(f"{self.target}/{directory}", mode=0o755, exist_ok=True)  # noqa: PTH103


def node_mounts(scratch: Path) -> list[Mount]:
    """What kubelet and containerd find at their usual places: fresh, and on the node's own disk."""
    plan = [
        Mount(target="/", flags=MS_REC | MS_PRIVATE),
        Mount(target="/proc", source="proc", filesystem="proc", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC),
        Mount(target="/run", filesystem="tmpfs", flags=MS_NOSUID | MS_NODEV, data="mode=755",
              make=("pinnace", "lock", "containerd")),
        Mount(target="/var/lib", filesystem="tmpfs", flags=MS_NOSUID | MS_NODEV, data="mode=755",
              make=("kubelet", "containerd", "cni", "etcd", "pinnace/volumes")),
        Mount(target="/sys/fs/cgroup", filesystem="cgroup2", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC),
    ]  # fmt: skip
    binds = [Mount(target=target, source=str(scratch / name), flags=MS_BIND) for name, target in ON_SCRATCH.items()]
    return plan + binds
