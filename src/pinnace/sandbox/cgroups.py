"""The cgroups of a node, on hosts where the user may make some: below a delegated cgroup v2 (see cgroups(7)).

    the agent's cgroup      delegated to the user. Only while it has no process can its children have controllers
      ├ pinnace             the agent, what it has started outside of nodes, and whatever else was in the agent's cgroup
      └ pinnace-UID-XXXX    a node, named after its scratch directory; the root of its cgroup namespace
          ├ init            the node's own processes
          └ kubepods        made by the kubelet

The node's directory on scratch has a record of where its cgroup is, so whoever removes that directory removes the
cgroups too. With the last node, the agent's cgroup becomes what it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pinnace.sandbox.mountinfo import mount_points, mount_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUIRED = ("cpu", "memory", "pids")  # controllers
USED = ("cpuset", *REQUIRED)
ROOT = Path("/sys/fs/cgroup")  # in a node
OTHERWISE = "by polling memory and by CPU affinity"
AGENTS, INIT = "pinnace", "init"
RECORD = "cgroup"  # in a node's directory on scratch
PROCS, SUBTREE = "cgroup.procs", "cgroup.subtree_control"
JOB, TASK = "job_", "task_"  # begin the names of Slurm's cgroups of jobs and tasks
MAX_MOVES = 100  # rounds in which all processes of a cgroup have been moved, or never will be
REMOVAL_LIMIT = 5.0  # seconds for processes that were killed to be gone
REMOVAL_INTERVAL = 0.02


def cgroup_of(cgroups: str, table: str) -> Path | None:
    """The directory of a process's cgroup v2, from the texts of its /proc/PID/cgroup and of mountinfo."""
    path = PurePosixPath(next((line[len("0::") :] for line in cgroups.splitlines() if line.startswith("0::")), ""))
    for point in mount_points(table):
        if point.filesystem == "cgroup2" and path.is_relative_to(point.root) and ".." not in path.parts:
            return Path(point.target, path.relative_to(point.root))
    return None


def parent_of_nodes(own: Path) -> Path:
    """The cgroup below which our nodes are: our own, unless an earlier node has moved us into ``AGENTS``."""
    return own.parent if own.name == AGENTS else own


def is_of_slurm(cgroup: Path) -> bool:
    """Whether it is the cgroup of a task, where Slurm looks for the task's processes, and not in those below it.

    It would send signals to none of them (``cgroup_p_step_get_pids``), and before 25.05 kill none.
    """
    return cgroup.name.startswith(TASK) and any(part.startswith(JOB) for part in cgroup.parts)


def is_of_systemd(cgroup: Path) -> bool:
    """Whether it is that of a unit of the user's systemd, which has not said ``Delegate=yes``: systemd changes it."""
    return _attribute(cgroup, "user.invocation_id") is not None and _attribute(cgroup, "user.delegate") != b"1"


def _attribute(cgroup: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(cgroup, name)
    except OSError:
        return None


def available(cgroup: Path) -> tuple[str, ...]:
    """The controllers that its children can have, of those that we use."""
    given = (cgroup / "cgroup.controllers").read_text().split()
    return tuple(name for name in USED if name in given)


def refusal(own: Path | None, uid: int) -> str:
    """Why nodes cannot have cgroups below our own; empty if they can, as far as it can be seen."""
    cgroup = parent_of_nodes(own) if own else None
    if not cgroup or not (cgroup / PROCS).exists():
        return "this host has no cgroup v2"
    if uid == 0:
        return "root's own are not delegated"
    if not all(os.access(cgroup / name, os.W_OK) for name in ("", PROCS, SUBTREE)):
        return "none delegated"
    if is_of_slurm(cgroup) or is_of_systemd(cgroup):
        return "Slurm has its processes in it" if is_of_slurm(cgroup) else "systemd keeps it to itself (Delegate=no)"
    if lacking := [name for name in REQUIRED if name not in available(cgroup)]:
        return f"delegated without {', '.join(lacking)}"
    return ""


def set_up(scratch: Path) -> Path:
    """Make the cgroup of a node. Where anything of that is refused, all is as before, and the OSError says why."""
    own = cgroup_of(Path("/proc/self/cgroup").read_text(), mount_table())
    reason = refusal(own, os.getuid())
    if own is None or reason:
        raise PermissionError(errno.EPERM, reason)
    cgroup = parent_of_nodes(own)
    (scratch / RECORD).write_text(str(cgroup))
    try:
        (cgroup / AGENTS).mkdir(mode=0o700, exist_ok=True)
        with _locked(cgroup):
            return _make(cgroup, scratch.name)
    except OSError:
        remove(scratch)
        raise


def _make(cgroup: Path, name: str) -> Path:
    node, controllers = cgroup / name, available(cgroup)
    _move(cgroup, cgroup / AGENTS)
    _control(cgroup, enable=controllers)
    node.mkdir(mode=0o755)
    if "cpuset" in controllers:  # where Slurm binds jobs by affinity, to which runc pays no regard
        (node / "cpuset.cpus").write_text(",".join(map(str, sorted(os.sched_getaffinity(0)))))
    return node


def enter(node: Path) -> None:
    """Be in a node's cgroup, for whoever makes its cgroup namespace next: this will be the root of it."""
    (node / PROCS).write_text("0")


@dataclass(kw_only=True)
class CgroupEntry:
    """Whether a node's first process has got into the node's cgroup, or why not."""

    entered: bool = False
    refusal: str = ""


@contextlib.contextmanager
def entering(node: Path | None) -> Iterator[CgroupEntry]:
    """Have the namespaces that are made in the block made in a node's cgroup. If that fails, they are made without."""
    entry = CgroupEntry()
    try:
        if node:
            enter(node)
    except OSError as error:
        node, entry.refusal = None, describe(error)
    yield entry
    try:
        if node:
            leave_root()
            entry.entered = True
    except OSError as error:
        entry.refusal = describe(error)


def describe(error: OSError) -> str:
    """What was refused, and where."""
    return f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)


def leave_root(root: Path = ROOT) -> None:
    """In the node's namespaces: leave the root to the kubelet, which makes cgroups with controllers below it."""
    (root / INIT).mkdir()
    (root / INIT / PROCS).write_text("0")
    _control(root, enable=available(root))


def join(pid: int) -> None:
    """Go into the cgroup of another process of ours."""
    cgroup = cgroup_of(Path(f"/proc/{pid}/cgroup").read_text(), mount_table())
    if cgroup:
        enter(cgroup)


def remove(scratch: Path) -> None:
    """Remove what ``set_up`` has made for a node, which has ended. May be repeated, and after a kill at any line."""
    with contextlib.suppress(OSError):  # there never were any, or they are gone with our cgroup
        cgroup = Path((scratch / RECORD).read_text())
        with _locked(cgroup):
            _remove_tree(cgroup / scratch.name)
            if not any(cgroup.glob(f"{AGENTS}-*/")):
                _restore(cgroup)


def _restore(cgroup: Path) -> None:
    _control(cgroup, disable=(cgroup / SUBTREE).read_text().split())
    _move(cgroup / AGENTS, cgroup)
    (cgroup / AGENTS).rmdir()


def _control(cgroup: Path, *, enable: Iterable[str] = (), disable: Iterable[str] = ()) -> None:
    """Choose the controllers of a cgroup's children."""
    words = [*(f"+{name}" for name in enable), *(f"-{name}" for name in disable)]
    if words:
        (cgroup / SUBTREE).write_text(" ".join(words))


def _move(source: Path, target: Path) -> None:
    """Move all processes of a cgroup, also those that are started meanwhile."""
    for _ in range(MAX_MOVES):
        pids = (source / PROCS).read_text().split()
        if not pids:
            return
        if "0" in pids:  # of another PID namespace
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                (target / PROCS).write_text(pid)
    raise OSError(errno.EBUSY, f"processes in {source} cannot be moved")


def _remove_tree(top: Path) -> None:
    """Kill what is left in a cgroup, and remove it with all below it."""
    with contextlib.suppress(OSError):  # from Linux 5.14
        descriptor = os.open(top / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"1")
        finally:
            os.close(descriptor)
    deadline = time.monotonic() + REMOVAL_LIMIT
    while top.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # EBUSY: a process is still ending
            for directory, _, _ in os.walk(top, topdown=False):
                Path(directory).rmdir()
            return
        time.sleep(REMOVAL_INTERVAL)


@contextlib.contextmanager
def _locked(cgroup: Path) -> Iterator[None]:
    """One process of ours at a time. The lock is in a directory that other users cannot open."""
    agents = cgroup / AGENTS
    while True:
        descriptor = os.open(agents, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if agents.exists() and os.path.samestat(os.fstat(descriptor), agents.stat()):
                yield
                return
        finally:
            os.close(descriptor)
