"""CPU limits by affinity: what ``cpu_allocation`` decides, made so for the processes of all containers.

Nothing is remembered but what bundles have: ``limits.json``, and in ``affinity`` the CPUs that a container was given,
if these are not all that it could have. Whoever does this may be killed at any line; the next one does the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinnace.node.containers import mount_namespace, processes_in
from pinnace.node.limits.container_limits import ContainerLimits
from pinnace.node.limits.cpu_allocation import Claim, allocate, format_cpu_list, parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pinnace.node.limits.cpu_allocation import Cpus

AFFINITY = "affinity"  # in a bundle
MAX_CPUS = 8192  # more than a kernel has


@dataclass(frozen=True, kw_only=True)
class CpuPool:
    """``available`` are the CPUs of the job; ``permitted`` are those that the kernel gives to whoever asks for all.

    runc asks for all of them for every container (it resets the affinity that it has itself).
    """

    available: Cpus
    permitted: Cpus

    @staticmethod
    def of_this_process(allocated: int | None) -> CpuPool:
        """Slurm's own binding counts, unless it is to fewer CPUs than Slurm has allocated."""
        own = frozenset(os.sched_getaffinity(0))
        os.sched_setaffinity(0, range(MAX_CPUS))
        permitted = frozenset(os.sched_getaffinity(0))
        os.sched_setaffinity(0, own)
        return CpuPool(available=permitted if len(own) < (allocated or 0) else own, permitted=permitted)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A container is to run on other CPUs than before."""

    bundle: Path
    old: Cpus
    new: Cpus


def assigned(bundle: Path) -> Cpus | None:
    """The CPUs that a container was given; None if it may use all."""
    with contextlib.suppress(OSError):
        return parse_cpu_list((bundle / AFFINITY).read_text())
    return None


def changes(tasks: Path, pool: CpuPool) -> list[Change]:
    """What must be different, now that some containers have come, gone, or changed."""
    found = {bundle: limits for bundle in tasks.iterdir() if (limits := ContainerLimits.read(bundle))}
    before = {bundle: assigned(bundle) for bundle in found}
    claims = [
        Claim(container=bundle.name, cpus=limits.cpus, exclusive=limits.exclusive, current=before[bundle])
        for bundle, limits in sorted(found.items())
    ]
    given = allocate(pool.available, claims)
    return [
        Change(bundle=bundle, old=current or pool.permitted, new=given[bundle.name])
        for bundle, current in before.items()
        if given[bundle.name] != (current or pool.permitted)
    ]


def rebalance(tasks: Path, pool: CpuPool, lock: Path) -> None:
    """Give all containers the CPUs that they should have."""
    with _locked(lock):
        todo = changes(tasks, pool)
        _apply(todo)
        for change in todo:
            with contextlib.suppress(FileNotFoundError):  # it has ended
                if change.new == pool.permitted:
                    (change.bundle / AFFINITY).unlink()
                else:
                    new = change.bundle / f"{AFFINITY}.new"
                    new.write_text(format_cpu_list(change.new))
                    new.rename(change.bundle / AFFINITY)


def enforce(tasks: Path) -> None:
    """Bring back what has left the CPUs of its container: a process may change its own affinity."""
    _apply([Change(bundle=bundle, old=cpus, new=cpus) for bundle in tasks.iterdir() if (cpus := assigned(bundle))])


def confine(pid: int, cpus: Cpus) -> None:
    """Confine a process with all its threads, also those that appear meanwhile."""
    done: set[int] = set()
    while threads := set(_threads(pid)) - done:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)
        done |= threads


def _apply(todo: list[Change]) -> None:
    """For containers that run. Others get their CPUs when they are started."""
    spaces = {}
    for change in todo:
        with contextlib.suppress(OSError, ValueError):  # it has ended, or has not begun
            spaces[mount_namespace((change.bundle / "init.pid").read_text().strip())] = change
    for space, pids in processes_in(set(spaces)).items() if spaces else ():
        for thread in (thread for pid in pids for thread in _threads(pid)):
            with contextlib.suppress(ProcessLookupError):
                _move(thread, spaces[space])


def _move(thread: int, change: Change) -> None:
    """A thread that was bound to some CPUs of its container's stays there, if they still are."""
    mask = frozenset(os.sched_getaffinity(thread))
    if mask != change.old and mask <= change.new:
        return
    target = change.new if mask == change.old else (mask & change.new or change.new)
    if mask != target:
        os.sched_setaffinity(thread, target)


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - strings
    return []


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
