"""The file systems of a node, as a plan that can be described before it is executed.

A node has a root directory of its own, on the host's disk, in which every entry of the host's root is bind-mounted. So
the kubelet may create ``/data`` for a pod that asks for it, and the user's working directory can be ``/app``, though
neither may be created on the host. Later mounts of the host, such as automounted homes, still propagate.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import (
    AT_RECURSIVE,
    CLONE_NEWCGROUP,
    CLONE_NEWNS,
    MNT_DETACH,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    MS_SLAVE,
    MS_UNBINDABLE,
    mount,
    mount_setattr,
    pivot_root,
    umount2,
    unshare,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Protocol

    class MountStep(Protocol):
        """One step of the plan, executed inside the new mount namespace."""

        def describe(self) -> str: ...
        def execute(self) -> None: ...


HARDENED = MS_NOSUID | MS_NODEV | MS_NOEXEC
NOT_MIRRORED = {"proc", "run"}  # the node has its own
VOLUMES = "/var/lib/pinnace/volumes"  # of the storage class `scratch`
LOCAL_DIRECTORIES = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "log": "/var/log",
    "volumes": VOLUMES,
}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One call of mount(2). ``make`` are directories to create in the mount afterwards."""

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
            Path(self.target, directory).mkdir(mode=0o755, parents=True, exist_ok=True)


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """An entry of the host's root, at the same path in the node's."""

    root: str
    name: str

    def describe(self) -> str:
        return f"/{self.name} as it is"

    def execute(self) -> None:
        source, target = Path("/", self.name), Path(self.root, self.name)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir()
            mount(str(source), str(target), flags=MS_BIND | MS_REC)
        elif source.is_file():
            target.touch()
            mount(str(source), str(target), flags=MS_BIND)


@dataclass(frozen=True, kw_only=True)
class MakeDirectory:
    """Create a directory and its parents."""

    path: str

    def describe(self) -> str:
        return f"mkdir {self.path}"

    def execute(self) -> None:
        Path(self.path).mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, kw_only=True)
class PivotRoot:
    """Make a directory the root, and unmount the old one. See pivot_root(2) for why both arguments are a dot."""

    root: str

    def describe(self) -> str:
        return f"pivot_root {self.root}"

    def execute(self) -> None:
        os.chdir(self.root)
        pivot_root(".", ".")
        umount2(".", MNT_DETACH)
        os.chdir("/")


def node_mounts(
    scratch: Path, entries: Iterable[str], binds: Mapping[str, str], containerd: Path | None = None
) -> list[MountStep]:
    """The plan. ``entries`` are the names in the host's root, ``binds`` maps paths in the node to paths on the host.

    ``containerd`` is the directory of containerd's files, if they are to outlive the node.
    """
    sources = {name: scratch / name for name in LOCAL_DIRECTORIES} | ({"containerd": containerd} if containerd else {})
    root = str(scratch / "root")
    steps: list[MountStep] = [
        Mount(target="/", flags=MS_REC | MS_SLAVE),
        Mount(target=root, source=root, flags=MS_BIND),
        Mount(target=root, flags=MS_UNBINDABLE),  # or it would appear in itself, below the mirror of /tmp
        *(Mirror(root=root, name=name) for name in sorted(entries) if name not in NOT_MIRRORED),
        MakeDirectory(path=f"{root}/proc"),
        Mount(target=f"{root}/proc", source="proc", filesystem="proc", flags=HARDENED),
        MakeDirectory(path=f"{root}/run"),
        Mount(target=f"{root}/run", filesystem="tmpfs", flags=MS_NOSUID | MS_NODEV, data="mode=755",
              make=("pinnace", "lock", "containerd")),
        Mount(target=f"{root}/var/lib", filesystem="tmpfs", flags=MS_NOSUID | MS_NODEV, data="mode=755",
              make=("kubelet", "containerd", "cni", "etcd", "pinnace/volumes")),
        # The kernel mounts no file system onto itself, which is there on hosts with nothing but cgroup v2.
        Mount(target=f"{root}/sys/fs/cgroup", filesystem="tmpfs", flags=HARDENED),
        Mount(target=f"{root}/sys/fs/cgroup", filesystem="cgroup2", flags=HARDENED),
        *(Mount(target=f"{root}{target}", source=str(sources[name]), flags=MS_BIND)
          for name, target in LOCAL_DIRECTORIES.items()),
    ]  # fmt: skip
    for target, source in binds.items():
        steps += [
            MakeDirectory(path=f"{root}{target}"),
            Mount(target=f"{root}{target}", source=source, flags=MS_BIND | MS_REC),
        ]
    return [*steps, PivotRoot(root=root)]


def mount_node(scratch: Path, binds: Mapping[str, str], containerd: Path | None = None) -> None:
    """Execute the plan in new mount and cgroup namespaces. The error names the step that failed.

    The monitor stays in the host's cgroup namespace: out of one, it could not remove the node's cgroup.
    """
    unshare(CLONE_NEWNS | CLONE_NEWCGROUP)
    for name in ("root", *LOCAL_DIRECTORIES):
        (scratch / name).mkdir(exist_ok=True)
    for step in node_mounts(scratch, os.listdir("/"), binds, containerd):  # noqa: PTH208
        try:
            step.execute()
        except OSError as error:
            raise OSError(error.errno, f"{step.describe()}: {error.strerror}") from error


def make_read_only(paths: Iterable[str]) -> None:
    """Make directories, with all mounts below them, read-only in this mount namespace. Missing ones are skipped.

    Later mounts of the host below them would propagate as writable, so propagation is turned off.
    """
    for path in paths:
        if Path(path).is_dir():
            mount(path, path, flags=MS_BIND | MS_REC)
            mount("none", path, flags=MS_REC | MS_PRIVATE)
            mount_setattr(path, flags=AT_RECURSIVE, attr_set=MOUNT_ATTR_RDONLY)
