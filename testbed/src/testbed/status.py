"""What one can see of a bed from outside."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from testbed.daemons import daemons_of, pid_of

if TYPE_CHECKING:
    from testbed.hosts import Hosts
    from testbed.plan import Host, Role

__all__ = ["DaemonState", "DaemonStatus", "HostState", "HostStatus", "host_status", "parse_sinfo"]


class HostState(StrEnum):
    """What happened to a host."""

    UP = "up"
    DOWN = "down"
    FROZEN = "frozen"
    CUT = "cut"


class DaemonState(StrEnum):
    """Is there a process?"""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class DaemonStatus:
    name: str
    state: DaemonState
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class HostStatus:
    """One host; ``node`` is its state as Slurm sees it, ``pid`` that of its first process on the machine."""

    name: str
    role: Role
    address: str
    state: HostState
    pid: int | None
    node: str
    daemons: tuple[DaemonStatus, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_sinfo(text: str) -> dict[str, str]:
    """From ``sinfo --Node --format='%N %T'``, which has a line per node and partition."""
    return dict(line.split() for line in text.splitlines() if len(line.split()) == 2)


def host_state(host: Host, hosts: Hosts, *, cut: frozenset[str]) -> HostState:
    if not hosts.is_up(host.name):
        return HostState.DOWN
    if hosts.cgroups.is_frozen(host.name):
        return HostState.FROZEN
    return HostState.CUT if host.name in cut else HostState.UP


def host_status(host: Host, hosts: Hosts, *, cut: frozenset[str], node: str) -> HostStatus:
    holder = hosts.holders.get(host.name)
    pids = {daemon.name: pid_of(daemon, hosts) for daemon in daemons_of(host, accounting=hosts.plan.accounting)}
    return HostStatus(
        name=host.name,
        role=host.role,
        address=str(host.address),
        state=host_state(host, hosts, cut=cut),
        pid=holder.pid if holder and holder.alive() else None,
        node=node,
        daemons=tuple(
            DaemonStatus(name=name, state=DaemonState.RUNNING if pid else DaemonState.STOPPED, pid=pid)
            for name, pid in pids.items()
        ),
    )
