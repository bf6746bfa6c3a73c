"""The daemons of each host: how they start, how one sees that they are ready, how they stop.

All of them run in the foreground, below the host's first process, which reaps them. A daemon is ready when it listens;
that is read from /proc, since a connection would be an event in its log.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import slurmconf
from testbed.errors import BedError, UsageError
from testbed.layout import MY_CNF
from testbed.namespaces import start_time
from testbed.plan import Host, Plan, Role
from testbed.waiting import tail, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from testbed.hosts import Hosts

__all__ = ["Daemon", "daemons_of", "find", "listening_ports", "pid_of", "start", "stop"]

START_LIMIT = 90.0
STOP_LIMIT = 90.0
LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """``stage`` says after which others it starts; it is ready when it listens on ``port`` or ``socket``."""

    name: str
    host: str
    stage: int
    argv: tuple[str, ...]
    user: str = "root"
    log: str
    port: int = 0
    socket: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """Where it writes what it says before it has opened its log."""
        return f"/var/log/{self.name}.out"


def daemons_of(host: Host, *, accounting: bool = True) -> tuple[Daemon, ...]:
    """Without accounting there is no slurmrestd either: that of 22.05 does not start then."""
    match host.role:
        case Role.LOGIN:
            of_accounting = (mariadbd(host), slurmdbd(host), slurmrestd(host)) if accounting else ()
            return (munged(host), *of_accounting, slurmctld(host))
        case Role.COMPUTE:
            return (munged(host), slurmd(host))
    return ()


def munged(host: Host) -> Daemon:
    log = "/var/log/munge/munged.log"
    options = ("--foreground", "--num-threads=2", f"--log-file={log}", "--seed-file=/var/spool/munge/munged.seed")
    return Daemon(
        name="munged",
        host=host.name,
        stage=1,
        argv=("/usr/sbin/munged", *options),
        user="munge",
        log=log,
        socket="/run/munge/munge.socket.2",
    )


def mariadbd(host: Host, *options: str) -> Daemon:
    return Daemon(
        name="mariadbd",
        host=host.name,
        stage=1,
        argv=("/usr/sbin/mariadbd", f"--defaults-file={MY_CNF}", *options),
        user="mysql",
        log="/var/log/mysql/mariadbd.log",
        socket=slurmconf.MYSQL_SOCKET,
    )


def slurmdbd(host: Host) -> Daemon:
    return Daemon(
        name="slurmdbd",
        host=host.name,
        stage=2,
        argv=("/usr/sbin/slurmdbd", "-D"),
        user="slurm",
        log="/var/log/slurm/slurmdbd.log",
        port=slurmconf.DBD_PORT,
    )


def slurmctld(host: Host) -> Daemon:
    return Daemon(
        name="slurmctld",
        host=host.name,
        stage=3,
        argv=("/usr/sbin/slurmctld", "-D"),
        user="slurm",
        log="/var/log/slurm/slurmctld.log",
        port=slurmconf.CTLD_PORT,
    )


def slurmd(host: Host) -> Daemon:
    return Daemon(
        name="slurmd",
        host=host.name,
        stage=4,
        argv=("/usr/sbin/slurmd", "-D", "-N", host.name),
        log="/var/log/slurm/slurmd.log",
        port=slurmconf.SLURMD_PORT,
    )


def slurmrestd(host: Host) -> Daemon:
    """As a user that is neither root nor SlurmUser; SLURM_JWT=daemon says that each request brings its own token."""
    listen = (f"unix:{slurmconf.REST_SOCKET}", f"{host.address}:{slurmconf.REST_PORT}")
    return Daemon(
        name="slurmrestd",
        host=host.name,
        stage=4,
        argv=("/usr/sbin/slurmrestd", "-a", "rest_auth/jwt", *listen),
        variables={"SLURM_JWT": "daemon"},
        user="slurmrestd",
        log="/var/log/slurmrestd.out",
        port=slurmconf.REST_PORT,
    )


def find(plan: Plan, name: str) -> Daemon:
    """A daemon by the name that the command line has for it: slurmctld, slurmd:n2."""
    known = {
        f"{daemon.name}:{host.name}" if daemon.name in ("munged", "slurmd") else daemon.name: daemon
        for host in plan.linked
        for daemon in daemons_of(host, accounting=plan.accounting)
    }
    if name not in known:
        raise UsageError(f"The bed has no daemon {name!r}.", hint="It has: " + ", ".join(known) + ".")
    return known[name]


def pid_of(daemon: Daemon, hosts: Hosts) -> int | None:
    """The oldest process of that name in the host's cgroup: slurmd forks others of its name for a moment."""
    started = [(start_time(pid), pid) for pid in hosts.cgroups.pids(daemon.host) if comm(pid) == daemon.name]
    return min(((begun, pid) for begun, pid in started if begun is not None), default=(0, None))[1]


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def listening_ports(proc_net_tcp: str) -> set[int]:
    """From the text of /proc/PID/net/tcp, which is that of the process's network namespace."""
    rows = (line.split() for line in proc_net_tcp.splitlines()[1:])
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == LISTEN}


def listens(daemon: Daemon, hosts: Hosts) -> bool:
    proc = Path(f"/proc/{hosts.holder(daemon.host).pid}")
    if daemon.socket:
        return daemon.socket in (proc / "net/unix").read_text().split()
    return daemon.port in listening_ports((proc / "net/tcp").read_text())


def start(daemons: Iterable[Daemon], hosts: Hosts) -> None:
    """Stage after stage, and all of a stage at once."""
    for _, stage in groupby(sorted(daemons, key=lambda daemon: daemon.stage), key=lambda daemon: daemon.stage):
        together = tuple(stage)
        launched = [
            subprocess.Popen(
                launch_command(daemon, hosts),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            for daemon in together
        ]
        for process in launched:
            process.wait(START_LIMIT)
        for daemon in together:
            await_ready(daemon, hosts)


def launch_command(daemon: Daemon, hosts: Hosts) -> list[str]:
    return hosts.command(daemon.argv, user=daemon.user, on=daemon.host, log=daemon.output, variables=daemon.variables)


def await_ready(daemon: Daemon, hosts: Hosts) -> None:
    def ready() -> bool:
        if pid_of(daemon, hosts) is None:
            texts = (tail(hosts.log(daemon.host, path)) for path in (daemon.output, daemon.log))
            raise BedError(f"{daemon.name} on {daemon.host} has ended by itself.\n" + "".join(texts))
        return listens(daemon, hosts)

    wait_until(f"{daemon.name} on {daemon.host}", ready, limit=START_LIMIT, log=hosts.log(daemon.host, daemon.log))


def stop(daemon: Daemon, hosts: Hosts) -> None:
    """SIGTERM, and time to write things down."""
    pid = pid_of(daemon, hosts)
    if pid is None:
        return
    begun = start_time(pid)
    pidfd = os.pidfd_open(pid)
    try:
        if start_time(pid) == begun:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        wait_until(
            f"{daemon.name} on {daemon.host} to end",
            lambda: start_time(pid) != begun,
            limit=STOP_LIMIT,
            log=hosts.log(daemon.host, daemon.log),
        )
    finally:
        os.close(pidfd)
