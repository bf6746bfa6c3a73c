"""The mount and user namespace of a container's ranks on one host: a plan of mounts, and the process that holds it.

The holder makes the mounts in a mount namespace of its own, then enters a user namespace (see ``ids``). Ranks enter
both.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NOATIME,
    MS_NODEV,
    MS_NODIRATIME,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_RELATIME,
    MS_REMOUNT,
    MS_SLAVE,
    die_with_parent,
    mount,
    unshare,
)
from pinnace.sandbox.mounts import Mount, PivotRoot

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from pinnace.sandbox.mounts import MountStep

MAX_SYMLINKS = 40  # in a path, as in path_resolution(7)
READY = b"ready"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the ranks of a world share it


@dataclass(frozen=True, kw_only=True)
class Root:
    """The file system of a world: an existing directory, or ``lower`` with ``upper`` over it."""

    path: str = ""
    lower: str = ""
    upper: str = ""
    work: str = ""

    def mount(self, target: str) -> Mount:
        if self.path:
            return Mount(target=target, source=self.path, flags=MS_BIND)
        layers = f"lowerdir={self.lower},upperdir={self.upper},workdir={self.work},userxattr"
        return Mount(target=target, source="overlay", filesystem="overlay", data=layers)


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A bind mount below ``root``. Links in the target are resolved inside that root."""

    root: str
    target: str
    source: str
    read_only: bool = False

    def describe(self) -> str:
        return f"{self.source} at {self.target}"

    def execute(self) -> None:
        if not Path(self.source).exists():
            raise FileNotFoundError(2, "this host does not have it")
        target = make_mount_point(self.root, self.target, directory=Path(self.source).is_dir())
        mount(self.source, target, flags=MS_BIND | MS_REC)
        if self.read_only:
            make_read_only(target)


@dataclass(frozen=True, kw_only=True)
class ReadOnly:
    """Make a mount read-only and keep its other flags: some are locked in a user namespace."""

    path: str

    def describe(self) -> str:
        return f"{self.path} read-only"

    def execute(self) -> None:
        make_read_only(self.path)


def make_read_only(path: str) -> None:
    found = os.statvfs(path).f_flag
    kept = found & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
    if found & os.ST_RELATIME:
        kept |= MS_RELATIME
    mount("none", path, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def resolve(root: str, path: str) -> str:
    """Resolve a path as if ``root`` were the root directory: no link leads out of it."""
    parts, found, followed = [part for part in path.split("/") if part], root, 0
    while parts:
        part = parts.pop(0)
        if part == ".":
            continue
        if part == "..":
            found = found if found == root else found.rpartition("/")[0]
            continue
        step = f"{found}/{part}"
        if not Path(step).is_symlink():
            found = step
            continue
        followed += 1
        if followed > MAX_SYMLINKS:
            raise OSError(40, f"too many symbolic links in {path}")
        led = str(Path(step).readlink())
        if led.startswith("/"):
            found = root
        parts = [*(piece for piece in led.split("/") if piece), *parts]
    return found


def make_mount_point(root: str, target: str, *, directory: bool) -> str:
    """Make the mount point of ``target``, if it does not exist. Returns its path."""
    path = Path(resolve(root, target))
    if directory:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif not path.exists():
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.touch(0o644)
    return str(path)


def plan(
    at: str, root: Root, binds: Sequence[Bind], *, proc: str, names: Mapping[str, str], read_only: bool
) -> list[MountStep]:
    """The plan of mounts, ending with pivot_root(2). ``names`` are /etc/hosts and the like, which are the host's."""
    return [
        Mount(target="/", flags=MS_REC | MS_SLAVE),
        root.mount(at),
        *(Bind(root=at, target=target, source=source) for target, source in
          (("/proc", proc), ("/sys", "/sys"), ("/dev", "/dev"))),
        Mount(target=f"{at}{SHARED_MEMORY}", filesystem="tmpfs", flags=MS_NOSUID | MS_NODEV, data="mode=1777"),
        *binds,
        *(Bind(root=at, target=target, source=source) for target, source in names.items()),
        *([ReadOnly(path=at)] if read_only else []),
        PivotRoot(root=at),
    ]  # fmt: skip


def hold(steps: Sequence[MountStep], channel: socket.socket) -> None:
    """Make a world, whose IDs the other end of the channel maps, and hold it until that end is closed."""
    die_with_parent(signal.SIGKILL)
    unshare(CLONE_NEWNS)
    for step in steps:
        try:
            step.execute()
        except OSError as error:
            raise OSError(error.errno, f"{step.describe()}: {error.strerror}") from error
    unshare(CLONE_NEWUSER)
    channel.send(READY)
    if channel.recv(64) != READY:
        return
    unshare(CLONE_NEWNS)  # one that the user namespace owns, so that ranks may enter both
    channel.send(READY)
    channel.recv(1)
