"""The first process of a host: it makes the host's namespaces and mounts, then only reaps.

Started as ``python -m testbed.init STATE HOST PLAN``, the plan as JSON. It writes ``pid N`` and ``ready`` to
stdout and lets go of it. When it dies, the kernel kills every process of the host.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from testbed.cgroups import Cgroups, hierarchies
from testbed.mounts import host_mounts
from testbed.namespaces import ALL_NAMESPACES, next_mount_namespace, unshare
from testbed.plan import Host, Plan, Role
from testbed.roots import root_of
from testbed.state import Directories

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main() -> NoReturn:
    directories = Directories(state=Path(sys.argv[1]))
    plan = Plan.from_json(json.loads(sys.argv[3]))
    host = plan.host(sys.argv[2])
    processors = sorted(os.sched_getaffinity(0))
    if plan.own_processors and host in plan.compute:
        os.sched_setaffinity(0, {processors[plan.compute.index(host) % len(processors)]})
    cgroups = Cgroups(name=directories.cgroup, hierarchies=hierarchies(Path("/proc/self/mounts").read_text()))
    for group in cgroups.of(host.name):  # before the cgroup namespace, which begins where we are
        (group / "cgroup.procs").write_text("0")
    make_namespaces(processors if plan.private_tmp else [])
    pid = os.fork()  # the pid namespace is for children
    if pid:
        tell(f"pid {pid}")
        os._exit(0)
    become(host, plan, directories, cgroups)
    tell("ready")
    let_go()
    reap()


def make_namespaces(processors: Sequence[int]) -> None:
    """Make the host's namespaces on that of these processors on which they get the lowest numbers.

    A mount namespace can be bound to a file, as Slurm's private /tmp needs it, only from one with a lower number. Newer
    kernels give each processor numbers of its own: those of jobs could be lower than that of their host.
    """
    before = os.sched_getaffinity(0)
    if processors:
        os.sched_setaffinity(0, {min(processors, key=next_mount_namespace)})
    unshare(ALL_NAMESPACES)
    os.sched_setaffinity(0, before)


def tell(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def hidden(directories: Directories) -> tuple[str, ...]:
    """What is nobody's business in the bed: its own state, and the checkout that it runs from."""
    checkout = (str(parent) for parent in Path(__file__).resolve().parents if (parent / ".git").exists())
    return (str(directories.cache), *checkout, str(directories.state))


def become(host: Host, plan: Plan, directories: Directories, cgroups: Cgroups) -> None:
    socket.sethostname(host.name)
    root = root_of(plan.generation, directories.cache)
    for step in host_mounts(host, plan, directories, cgroups, root=root, hidden=hidden(directories)):
        try:
            step.execute()
        except OSError as error:
            raise SystemExit(f"{step.describe()}: {error}") from error
    if host.role is Role.SWITCH:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    os.chdir("/")


def let_go() -> None:
    """Nothing of the command that started us may stay open: it waits for the end of its pipes."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def reap() -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    main()
