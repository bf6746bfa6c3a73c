"""The bed as an object: what the command line does, for tests and demos in Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from testbed import accounting, daemons, faults, layout, network, processes, roots, slurmconf
from testbed.cgroups import Cgroups, Hierarchies, hierarchies
from testbed.errors import BedError
from testbed.hosts import Hosts, start_hosts
from testbed.state import Directories, Phase, State, locked
from testbed.status import HostStatus, host_status, parse_sinfo
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from testbed.plan import Plan

__all__ = ["Bed", "Reporter"]

IDLE_LIMIT = 90.0
RUN_LIMIT = 60.0
Reporter = Callable[[str], AbstractContextManager[None]]
"""Called with what is about to happen; the context lasts as long as it takes."""


def silent(_what: str) -> AbstractContextManager[None]:
    return nullcontext()


class Bed:
    """A bed that is up. ``Bed.up(plan)`` makes one, ``Bed.current()`` finds the one that is there."""

    def __init__(self, directories: Directories | None = None, *, report: Reporter = silent) -> None:
        self.directories = directories or Directories.from_environment()
        self.report = report

    @classmethod
    def current(cls, directories: Directories | None = None, *, report: Reporter = silent) -> Bed:
        require_root()
        bed = cls(directories, report=report)
        bed.state()
        return bed

    @classmethod
    def up(cls, plan: Plan, directories: Directories | None = None, *, report: Reporter = silent) -> Bed:
        """Make a bed. What a dead run left is cleaned; a bed that is up is left alone."""
        require_root()
        bed = cls(directories, report=report)
        with bed.locked():
            bed.refuse_second()
            if bed.remains():
                with report("cleaning what a dead run has left"):
                    bed.tear_down()
            with report(f"Slurm {plan.slurm} of Debian {plan.generation.release}"):
                versions = roots.ensure(plan.generation, bed.directories.cache)
            try:
                bed.build(plan, versions)
            except BaseException:
                bed.tear_down()
                raise
        return bed

    def down(self) -> bool:
        """Leave nothing: no process, namespace, mount, interface or cgroup. False if there was nothing."""
        require_root()
        with self.locked():
            found = self.remains()
            self.tear_down()
        return found

    # What runs

    def state(self) -> State:
        state = State.read(self.directories)
        if state is None or state.phase is not Phase.UP:
            raise BedError("There is no bed.", hint="testbed up")
        return state

    def hosts(self, state: State | None = None) -> Hosts:
        state = state or self.state()
        return Hosts(directories=self.directories, cgroups=self.cgroups, plan=state.plan, holders=state.holders)

    @property
    def plan(self) -> Plan:
        return self.state().plan

    @property
    def cgroups(self) -> Cgroups:
        return Cgroups(name=self.directories.cgroup, hierarchies=machine_hierarchies())

    def status(self) -> tuple[HostStatus, ...]:
        state = self.state()
        hosts = self.hosts(state)
        nodes = self.nodes() if hosts.is_up("login") and not self.cgroups.is_frozen("login") else {}
        return tuple(
            host_status(host, hosts, cut=state.cut, node=nodes.get(host.name, "")) for host in state.plan.linked
        )

    def nodes(self) -> dict[str, str]:
        """The state of each node, as Slurm sees it; nothing while slurmctld does not answer."""
        result = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], user="root", check=False)
        return parse_sinfo(result.stdout)

    # Commands

    def command(self, argv: Sequence[str], *, user: str = "alice", on: str = "login", cwd: str = "") -> list[str]:
        return self.hosts().command(argv, user=user, on=on, cwd=cwd)

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "alice",
        on: str = "login",
        cwd: str = "",
        check: bool = True,
        timeout: float = RUN_LIMIT,
        input: str | None = None,  # noqa: A002 - as subprocess has it
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end, without a terminal."""
        command = self.command(argv, user=user, on=on, cwd=cwd)
        stdin = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **stdin)
        if check and result.returncode:
            raise BedError(
                f"{user}@{on}: {' '.join(argv)} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
            )
        return subprocess.CompletedProcess(list(argv), result.returncode, result.stdout, result.stderr)

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = "alice",
        on: str = "login",
        cwd: str = "",
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a host. Signals to this process go on to the command; its death is the command's."""
        command = self.command(argv, user=user, on=on, cwd=cwd)
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, text=True)

    # Faults

    def kill_host(self, name: str) -> None:
        with self.changing() as state:
            faults.kill_host(self.hosts(state), name)
            replace(state.without_holder(name), cut=state.cut - {name}).write(self.directories)

    def start_host(self, name: str) -> None:
        with self.changing() as state:
            host = faults.linked_host(self.hosts(state), name)
            if self.hosts(state).is_up(name):
                raise BedError(f"{name} is up.")
            holders = start_hosts((host,), state.plan, self.directories, self.cgroups)
            with_host = state.with_holder(name, holders[name])
            with_host.write(self.directories)
            hosts = self.hosts(with_host)
            network.connect(state.plan, host, hosts.holder("switch").pid, hosts.holder(name).pid)
            daemons.start(daemons.daemons_of(host, accounting=state.plan.accounting), hosts)

    def cut_link(self, name: str) -> None:
        with self.changing() as state:
            faults.cut_link(self.hosts(state), name)
            replace(state, cut=state.cut | {name}).write(self.directories)

    def join_link(self, name: str) -> None:
        with self.changing() as state:
            faults.join_link(self.hosts(state), name)
            replace(state, cut=state.cut - {name}).write(self.directories)

    def freeze(self, name: str) -> None:
        with self.changing() as state:
            faults.freeze(self.hosts(state), name)

    def thaw(self, name: str) -> None:
        with self.changing() as state:
            faults.thaw(self.hosts(state), name)

    def restart(self, name: str) -> None:
        """Stop a daemon and start it again: slurmctld, slurmdbd, slurmrestd, slurmd:n2, munged:n2."""
        with self.changing() as state:
            hosts = self.hosts(state)
            daemon = daemons.find(state.plan, name)
            daemons.stop(daemon, hosts)
            daemons.start((daemon,), hosts)

    # How it is made and unmade

    def locked(self) -> AbstractContextManager[None]:
        def waiting(why: str) -> None:
            with self.report(f"waiting: {why}"):
                pass

        return locked(self.directories, waiting=waiting)

    @contextmanager
    def changing(self) -> Iterator[State]:
        with self.locked():
            yield self.state()

    def refuse_second(self) -> None:
        try:
            state = State.read(self.directories)
        except BedError:  # damaged: whatever it was, it is no bed
            return
        if state and state.phase is Phase.UP and any(holder.alive() for holder in state.holders.values()):
            raise BedError(
                f"A bed is up already, in {self.directories.state}.",
                hint="testbed status shows it, testbed down removes it.",
            )

    def remains(self) -> bool:
        return self.directories.file.exists() or self.directories.host("").exists() or self.cgroups.exist()

    def tear_down(self) -> None:
        cgroups = self.cgroups
        processes.kill_inits(self.directories)
        cgroups.kill()
        wait_until("the end of all processes", lambda: not cgroups.pids(), limit=IDLE_LIMIT)
        cgroups.remove()
        layout.remove(self.directories)

    def build(self, plan: Plan, versions: dict[str, str]) -> None:
        cgroups = self.cgroups
        controllers = cgroups.hierarchies.controllers if plan.cgroups else frozenset[str]()
        layout.lay_out(plan, self.directories, controllers)
        state = State(plan=plan, phase=Phase.STARTING, holders={})
        state.write(self.directories)
        cache = accounting.cached(self.directories, versions)
        if plan.accounting and cache.exists():
            accounting.restore(cache, self.directories)
        with self.report(f"{len(plan.linked)} hosts and their network"):
            state = replace(state, holders=start_hosts(plan.all, plan, self.directories, cgroups))
            state.write(self.directories)
            hosts = self.hosts(state)
            switch = hosts.holder("switch").pid
            network.batch("ip", switch, network.switch_batch(plan), what="The switch")
            for host in plan.linked:
                network.connect(plan, host, switch, hosts.holder(host.name).pid)
        if plan.accounting and not cache.exists():
            with self.report("the accounting database, this once"):
                accounting.make(cache, hosts)
        with self.report("the daemons of Slurm"):
            started = (daemons.daemons_of(host, accounting=plan.accounting) for host in plan.linked)
            daemons.start((daemon for of_host in started for daemon in of_host), hosts)
            replace(state, phase=Phase.UP).write(self.directories)
        with self.report(f"{plan.hosts} nodes idle"):
            log = hosts.log("login", "/var/log/slurm/slurmctld.log")
            wait_until("all nodes to be idle", self.all_idle, limit=IDLE_LIMIT, log=log, interval=0.1)
        if plan.maintenance:
            with self.report(f"a reservation in {plan.maintenance} minutes"):
                self.run(slurmconf.reservation_command(plan), user="root")

    def all_idle(self) -> bool:
        nodes = self.nodes()
        return len(nodes) == self.plan.hosts and set(nodes.values()) == {"idle"}


def require_root() -> None:
    if os.geteuid() != 0:
        raise BedError("The bed makes namespaces and devices: it needs root.", hint="sudo testbed …")


def machine_hierarchies() -> Hierarchies:
    return hierarchies(Path("/proc/self/mounts").read_text())
