"""The file systems of a host, as a plan of small steps that can be described, tested and executed.

A host sees a root directory read-only: the machine's, or one of another release of Debian (``testbed.roots``). What a
host changes goes to its own directories below the state directory: /etc and /opt are overlays over the root's, so the
users of the bed exist in the bed only.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from testbed import driver
from testbed.namespaces import (
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    mount,
    noexec,
    pivot_root,
    private,
    readonly,
    readwrite,
    umount2,
)
from testbed.plan import GROUPS, USERS, Host, Plan, Role
from testbed.slurmconf import FPGAS, fpga_path
from testbed.stale_home import mount_stale

if TYPE_CHECKING:
    from testbed.cgroups import Cgroups
    from testbed.state import Directories

__all__ = ["Step", "host_mounts"]

HARDENED = MS_NOSUID | MS_NODEV | MS_NOEXEC
MACHINE = "/mnt"  # where a host that has another root sees the machine's, while its mounts are made
ADMINISTRATORS_PROGRAMS = "/usr/local/sbin"
NFT, IP = "/usr/sbin/nft", "/usr/sbin/ip"
UVM_MAJOR, FPGA_MAJOR, INFINIBAND_MAJOR = 241, 242, 243  # as that of GPUs, see testbed.driver


class Step(Protocol):
    """One thing to do inside the new mount namespace."""

    def describe(self) -> str: ...

    def execute(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ReadOnlyRoot:
    """Everything of the machine but the state directory."""

    writable: str

    def describe(self) -> str:
        return f"everything read-only but {self.writable}"

    def execute(self) -> None:
        private("/")
        mount(self.writable, self.writable, flags=MS_BIND)
        readonly("/")
        readwrite(self.writable)


@dataclass(frozen=True, kw_only=True)
class OtherRoot:
    """A directory as the root, read-only. The machine's is below it until the mounts are made."""

    root: str

    def describe(self) -> str:
        return f"pivot_root {self.root} {self.root}{MACHINE}, read-only"

    def execute(self) -> None:
        private("/")
        mount(self.root, self.root, flags=MS_BIND)
        readonly(self.root)
        pivot_root(self.root, self.root + MACHINE)
        os.chdir("/")


@dataclass(frozen=True, kw_only=True)
class Filesystem:
    """A mount; ``flags`` as in mount(2)."""

    target: str
    fstype: str
    options: str = ""
    flags: int = 0

    def describe(self) -> str:
        return f"mount -t {self.fstype} -o {self.options or 'defaults'} {self.fstype} {self.target}"

    def execute(self) -> None:
        mount(self.fstype, self.target, self.fstype, self.flags, self.options)


@dataclass(frozen=True, kw_only=True)
class Unmount:
    """The machine's, with all below: who reads /proc/mounts in a host must not find what cannot be seen there."""

    target: str

    def describe(self) -> str:
        return f"umount --lazy {self.target}"

    def execute(self) -> None:
        with contextlib.suppress(OSError):  # EINVAL: there is none any more
            while True:
                umount2(self.target, MNT_DETACH)


@dataclass(frozen=True, kw_only=True)
class Bind:
    source: str
    target: str

    def describe(self) -> str:
        return f"mount --bind {self.source} {self.target}"

    def execute(self) -> None:
        mount(self.source, self.target, flags=MS_BIND)


@dataclass(frozen=True, kw_only=True)
class NoExec:
    """A mount in which nothing can be executed."""

    target: str

    def describe(self) -> str:
        return f"mount -o remount,bind,noexec {self.target}"

    def execute(self) -> None:
        noexec(self.target)


@dataclass(frozen=True, kw_only=True)
class StaleHome:
    """The homes, with names and attributes that may be old (see ``testbed.stale_home``)."""

    source: str
    target: str
    name_life: int

    def describe(self) -> str:
        return f"mount -t fuse {self.source} {self.target}"

    def execute(self) -> None:
        groups = {user.uid: [group.gid for group in GROUPS if user.name in group.members] for user in USERS}
        mount_stale(self.source, self.target, groups, self.name_life)


@dataclass(frozen=True, kw_only=True)
class Hide:
    """An empty directory over one that the users of the bed must not see."""

    target: str

    def describe(self) -> str:
        return f"hide {self.target}"

    def execute(self) -> None:
        if Path(self.target).is_dir():
            mount("tmpfs", self.target, "tmpfs", HARDENED, "mode=0700,size=64m")


@dataclass(frozen=True, kw_only=True)
class Directory:
    """A directory of the host; the owner is looked up in the /etc/passwd that the host has by now."""

    path: str
    mode: int = 0o755
    owner: str = "root"

    def describe(self) -> str:
        return f"mkdir -m {self.mode:o} {self.path} ({self.owner})"

    def execute(self) -> None:
        path = Path(self.path)
        path.mkdir(exist_ok=True)
        user = pwd.getpwnam(self.owner)
        os.chown(path, user.pw_uid, user.pw_gid)
        path.chmod(self.mode)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of a program."""

    source: str
    target: str

    def describe(self) -> str:
        return f"cp {self.source} {self.target}"

    def execute(self) -> None:
        shutil.copy(self.source, self.target)


@dataclass(frozen=True, kw_only=True)
class Symlink:
    path: str
    target: str

    def describe(self) -> str:
        return f"ln -s {self.target} {self.path}"

    def execute(self) -> None:
        Path(self.path).symlink_to(self.target)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A character device."""

    path: str
    major: int
    minor: int
    mode: int = 0o666

    def describe(self) -> str:
        return f"mknod -m {self.mode:o} {self.path} c {self.major} {self.minor}"

    def execute(self) -> None:
        os.mknod(self.path, stat.S_IFCHR, os.makedev(self.major, self.minor))
        Path(self.path).chmod(self.mode)


@dataclass(frozen=True, kw_only=True)
class LoaderCache:
    """The cache of the dynamic loader, with the libraries of the host's driver."""

    def describe(self) -> str:
        return "ldconfig"

    def execute(self) -> None:
        subprocess.run(["/sbin/ldconfig", "-i", "-X"], check=True, timeout=60, stderr=subprocess.DEVNULL)


def host_mounts(
    host: Host, plan: Plan, directories: Directories, cgroups: Cgroups, *, root: Path, hidden: tuple[str, ...]
) -> tuple[Step, ...]:
    """The steps in their order: a source below /tmp or /var must be used before something covers it."""
    if host.role is Role.SWITCH:
        return (
            ReadOnlyRoot(writable=str(directories.state)),
            Filesystem(target="/proc", fstype="proc", flags=HARDENED),
        )
    if root == Path("/"):
        return (
            ReadOnlyRoot(writable=str(directories.state)),
            *mounts_over_root(host, plan, directories, cgroups),
            *(Hide(target=path) for path in hidden),
        )
    beside = replace(directories, state=Path(f"{MACHINE}{directories.state}"))
    return (OtherRoot(root=str(root)), *mounts_over_root(host, plan, beside, cgroups), Unmount(target=MACHINE))


def home_of(plan: Plan, directories: Directories) -> Step:
    source, target = str(directories.home), "/home"
    if plan.stale_home:
        return StaleHome(source=source, target=target, name_life=plan.name_life)
    return Bind(source=source, target=target)


def mounts_over_root(host: Host, plan: Plan, directories: Directories, cgroups: Cgroups) -> tuple[Step, ...]:
    """All that a host has of its own, whatever its root is; ``directories`` are as the host sees them meanwhile."""
    own = directories.host(host.name)
    return (
        overlay("/etc", lower=f"{directories.etc}:/etc", own=own),
        overlay("/opt", lower=f"{directories.opt}:/opt", own=own),
        Bind(source=str(directories.opt / "pinnace"), target="/opt/pinnace"),
        Bind(source="/etc/extrausers", target="/var/lib/extrausers"),
        *([overlay(driver.PROGRAMS, lower=driver.PROGRAMS, own=own), LoaderCache()] if host.gpus else ()),
        *(Unmount(target=target) for target in ("/proc", "/sys", "/dev")),
        Filesystem(target="/proc", fstype="proc", flags=HARDENED),
        Filesystem(target="/sys", fstype="sysfs", flags=HARDENED),
        *cgroup_mounts(cgroups),
        *devices(host),
        home_of(plan, directories),
        *(nft_of_administrators(own) if plan.no_nft else ()),
        Filesystem(target="/run", fstype="tmpfs", options="mode=0755", flags=MS_NOSUID | MS_NODEV),
        Directory(path="/run/lock", mode=0o1777),
        Directory(path="/run/user"),
        Directory(path="/run/slurm", owner="slurm"),
        Directory(path="/run/munge", owner="munge"),
        Directory(path="/run/mysqld", owner="mysql"),
        Directory(path="/run/slurmrestd", owner="slurmrestd"),
        Bind(source=str(own / "log"), target="/var/log"),
        Directory(path="/var/log/slurm", owner="slurm"),
        Directory(path="/var/log/munge", mode=0o700, owner="munge"),
        Directory(path="/var/log/mysql", owner="mysql"),
        Bind(source=str(own / "spool"), target="/var/spool"),
        Directory(path="/var/spool/munge", mode=0o700, owner="munge"),
        Directory(path="/var/spool/mysql", mode=0o700, owner="mysql"),
        Directory(path="/var/spool/slurmctld", mode=0o700, owner="slurm"),
        Directory(path="/var/spool/slurmd"),
        Bind(source=str(own / "var-tmp"), target="/var/tmp"),  # noqa: S108
        Bind(source=str(own / "tmp"), target="/tmp"),  # noqa: S108
        *([NoExec(target="/tmp")] if plan.noexec_tmp else ()),  # noqa: S108
        Hide(target="/root"),
    )


def overlay(target: str, *, lower: str, own: Path) -> Filesystem:
    upper = own / target.lstrip("/")
    options = f"lowerdir={lower},upperdir={upper},workdir={upper}.work"
    return Filesystem(target=target, fstype="overlay", options=options)


def nft_of_administrators(own: Path) -> tuple[Step, ...]:
    """nft where packages do not put it, and no ip: what is in the usual places cannot be executed."""
    copy = f"{ADMINISTRATORS_PROGRAMS}/nft"
    return (
        overlay(ADMINISTRATORS_PROGRAMS, lower=ADMINISTRATORS_PROGRAMS, own=own),
        Copy(source=NFT, target=copy),
        Bind(source="/dev/null", target=NFT),
        Bind(source="/dev/null", target=IP),
    )


def cgroup_mounts(cgroups: Cgroups) -> tuple[Step, ...]:
    """The hierarchies where the machine has them; in the host's cgroup namespace they begin at its own groups."""
    top = "/sys/fs/cgroup"
    if not cgroups.hierarchies.v1:
        return (Filesystem(target=top, fstype="cgroup2", flags=HARDENED),)
    steps: list[Step] = [Filesystem(target=top, fstype="tmpfs", options="mode=0755,size=1m", flags=HARDENED)]
    for name in ("unified", *cgroups.hierarchies.v1):
        fstype, options = ("cgroup2", "") if name == "unified" else ("cgroup", name)
        steps += [
            Directory(path=f"{top}/{name}"),
            Filesystem(target=f"{top}/{name}", fstype=fstype, options=options, flags=HARDENED),
        ]
    return tuple(steps)


def devices(host: Host) -> tuple[Step, ...]:
    """A /dev of its own: tun and fuse are for everyone, as on a real host, without a chmod on the machine."""
    return (
        Filesystem(target="/dev", fstype="tmpfs", options="mode=0755,size=4m", flags=MS_NOSUID),
        Node(path="/dev/null", major=1, minor=3),
        Node(path="/dev/zero", major=1, minor=5),
        Node(path="/dev/full", major=1, minor=7),
        Node(path="/dev/random", major=1, minor=8),
        Node(path="/dev/urandom", major=1, minor=9),
        Node(path="/dev/kmsg", major=1, minor=11, mode=0o644),
        Node(path="/dev/tty", major=5, minor=0),
        Node(path="/dev/fuse", major=10, minor=229),
        Directory(path="/dev/net"),
        Node(path="/dev/net/tun", major=10, minor=200),
        *(accelerators(host) if host.gpus else ()),
        Symlink(path="/dev/fd", target="/proc/self/fd"),
        *(Symlink(path=f"/dev/{name}", target=f"/proc/self/fd/{fd}") for fd, name in enumerate(STANDARD_STREAMS)),
        Directory(path="/dev/pts"),
        Filesystem(
            target="/dev/pts", fstype="devpts", options="newinstance,ptmxmode=0666,mode=0620,gid=5", flags=MS_NOSUID
        ),
        Symlink(path="/dev/ptmx", target="pts/ptmx"),
        Directory(path="/dev/shm", mode=0o1777),  # noqa: S108
        Filesystem(target="/dev/shm", fstype="tmpfs", options="mode=1777", flags=MS_NOSUID | MS_NODEV),  # noqa: S108
        Directory(path="/dev/mqueue"),
        Filesystem(target="/dev/mqueue", fstype="mqueue", flags=HARDENED),
    )


def accelerators(host: Host) -> tuple[Step, ...]:
    """The device files of a host with GPUs: these, FPGAs, perhaps an InfiniBand adapter. No driver is behind them."""
    adapter = (
        Directory(path="/dev/infiniband"),
        Node(path="/dev/infiniband/rdma_cm", major=INFINIBAND_MAJOR, minor=0),
        Node(path="/dev/infiniband/uverbs0", major=INFINIBAND_MAJOR, minor=192),
    )
    gpus = ((driver.gpu_path(number), driver.gpu_minor(host, number)) for number in range(host.gpus))
    return (
        *(Node(path=path, major=driver.GPU_MAJOR, minor=minor) for path, minor in gpus),
        Node(path="/dev/nvidiactl", major=driver.GPU_MAJOR, minor=255),
        Node(path="/dev/nvidia-uvm", major=UVM_MAJOR, minor=0),
        Node(path="/dev/nvidia-uvm-tools", major=UVM_MAJOR, minor=1),
        *(Node(path=fpga_path(number), major=FPGA_MAJOR, minor=number) for number in range(FPGAS)),
        *(adapter if host.infiniband else ()),
    )


STANDARD_STREAMS = ("stdin", "stdout", "stderr")
