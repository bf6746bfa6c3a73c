"""What goes wrong on a real cluster: hosts lose power or hang, cables are pulled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed import network
from testbed.errors import BedError, UsageError
from testbed.plan import Host, Role
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from testbed.hosts import Hosts

__all__ = ["cut_link", "freeze", "join_link", "kill_host", "linked_host", "thaw"]

FAULT_LIMIT = 15.0


def linked_host(hosts: Hosts, name: str) -> Host:
    """A host that faults can happen to."""
    host = hosts.plan.host(name)
    if host.role is Role.SWITCH:
        raise UsageError("The switch does not fail: it holds the bed together.")
    return host


def kill_host(hosts: Hosts, name: str) -> None:
    """As a power cut. The link goes first: the others must not hear a FIN from a kernel that is still there."""
    host = linked_host(hosts, name)
    holder = hosts.holder(name)
    switch = hosts.holder("switch").pid
    network.batch("ip", switch, [f"link del {host.port}"], what=f"The link of {name}")
    hosts.cgroups.kill(name)
    wait_until(f"the end of {name}", lambda: not holder.alive(), limit=FAULT_LIMIT)
    hosts.cgroups.remove(name)


def cut_link(hosts: Hosts, name: str) -> None:
    set_port(hosts, name, up=False)


def join_link(hosts: Hosts, name: str) -> None:
    set_port(hosts, name, up=True)


def set_port(hosts: Hosts, name: str, *, up: bool) -> None:
    host = linked_host(hosts, name)
    hosts.holder(name)
    lines = network.port_batch(host, up=up)
    network.batch("ip", hosts.holder("switch").pid, lines, what=f"The link of {name}")


def freeze(hosts: Hosts, name: str) -> None:
    """As a hang: every process stands still, the kernel still answers pings."""
    linked_host(hosts, name)
    hosts.holder(name)
    hosts.cgroups.freeze(name, frozen=True)
    wait_until(f"{name} to freeze", lambda: hosts.cgroups.is_frozen(name), limit=FAULT_LIMIT)


def thaw(hosts: Hosts, name: str) -> None:
    linked_host(hosts, name)
    hosts.holder(name)
    if not hosts.cgroups.is_frozen(name):
        raise BedError(f"{name} is not frozen.")
    hosts.cgroups.freeze(name, frozen=False)
