"""The cgroups of a bed.

In the machine's cgroup2 hierarchy each host has a group, whatever controllers are there: it tells which processes are
the host's even when the state file is lost, and it can freeze and kill them. In the cgroup v1 hierarchies that are
free to use, freezer, devices and pids, each host has a group for its own Slurm. The bed never goes near memory, whose
groups belong to the machine, nor cpuset, since the hosts have more CPUs than the machine.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BedError

__all__ = ["SLURM_CONTROLLERS", "Cgroups", "Hierarchies", "hierarchies"]

SLURM_CONTROLLERS = ("freezer", "devices", "pids")
REMOVE_LIMIT = 10.0


@dataclass(frozen=True, kw_only=True)
class Hierarchies:
    """Where the hierarchies that the bed uses are mounted: cgroup2, and cgroup v1 by controller."""

    unified: Path
    v1: dict[str, Path]

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self.v1)


def hierarchies(mounts: str) -> Hierarchies:
    """Read them from the text of /proc/self/mounts."""
    unified: Path | None = None
    v1: dict[str, Path] = {}
    for line in mounts.splitlines():
        _, target, fstype, options, *_ = line.split()
        if fstype == "cgroup2" and unified is None:
            unified = Path(target)
        if fstype == "cgroup":
            v1 |= {name: Path(target) for name in SLURM_CONTROLLERS if name in options.split(",")}
    if unified is None:
        raise BedError("This machine has no cgroup2 mounted.", hint="mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
    return Hierarchies(unified=unified, v1=v1)


@dataclass(frozen=True, kw_only=True)
class Cgroups:
    """The groups named ``name`` at the top of every hierarchy, with one child per host."""

    name: str
    hierarchies: Hierarchies

    @property
    def tops(self) -> tuple[Path, ...]:
        """cgroup2 first: once its group is empty, nobody is left to make new groups in the others."""
        return tuple(mount / self.name for mount in (self.hierarchies.unified, *self.hierarchies.v1.values()))

    @property
    def unified(self) -> Path:
        return self.tops[0]

    def of(self, host: str) -> tuple[Path, ...]:
        return tuple(top / host for top in self.tops)

    def create(self, host: str) -> None:
        for group in self.of(host):
            group.mkdir(parents=True, exist_ok=True)

    def exist(self) -> bool:
        return any(top.exists() for top in self.tops)

    def pids(self, host: str = "") -> list[int]:
        """Every process of one host, or of all."""
        groups = [Path(group) for group, _, _ in os.walk(self.unified / host)]  # some may go while we look
        return [pid for group in groups for pid in map(int, read(group / "cgroup.procs").split())]

    def freeze(self, host: str, *, frozen: bool) -> None:
        (self.unified / host / "cgroup.freeze").write_text("1" if frozen else "0")

    def is_frozen(self, host: str) -> bool:
        return "frozen 1" in read(self.unified / host / "cgroup.events")

    def kill(self, host: str = "") -> None:
        """SIGKILL for all processes of one host, or of all, at once; frozen ones as well."""
        switch = self.unified / host / "cgroup.kill"
        if switch.exists():
            switch.write_text("1")

    def remove(self, host: str = "") -> None:
        """Remove the groups of one host, or of all, when the last process is gone."""
        limit = time.monotonic() + REMOVE_LIMIT
        for top in self.tops:
            while not remove_tree(top / host):
                if time.monotonic() > limit:
                    processes = " ".join(map(str, self.pids())) or "none that can be seen"
                    raise BedError(f"The cgroup {top / host} cannot be removed. Processes: {processes}.")
                time.sleep(0.01)


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the group has gone
        return ""


def remove_tree(group: Path) -> bool:
    """Remove a group and those below it, the deepest first; False while one of them is busy."""
    if not group.exists():
        return True
    try:
        for child in sorted(group.rglob("*/"), reverse=True):
            child.rmdir()
        group.rmdir()
    except FileNotFoundError:
        return False
    except OSError:  # EBUSY
        return False
    return True
