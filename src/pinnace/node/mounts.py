"""The file systems of a node, as a plan that can be described before it is executed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.node.linux import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_REC, mount

if TYPE_CHECKING:
    from pathlib import Path


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
              make=("kubelet", "containerd", "cni", "etcd")),
        Mount(target="/sys/fs/cgroup", filesystem="cgroup2", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC),
    ]  # fmt: skip
    for name, target in (("kubelet", "/var/lib/kubelet"), ("containerd", "/var/lib/containerd"), ("log", "/var/log")):
        plan.append(Mount(target=target, source=str(scratch / name), flags=MS_BIND))
    return plan


def file_system(target: str, table: str) -> str:
    """The type of the file system that is mounted on a directory, from /proc/self/mounts; empty if none is."""
    types = [words[2] for words in map(str.split, table.splitlines()) if words[1] == target]
    return types[-1] if types else ""
