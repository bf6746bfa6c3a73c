"""One model in one round: what it takes to run commands there. This module has bare Slurm's session.

Every session has the same hosts. The workload runs on the first of them; servers of network tasks, and the heads of
clusters whose pods or jobs run elsewhere, are on the last.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.bench.allocation import PLAIN, HostAllocation, execute, in_directory, running, step_argv
from pinnace.bench.measurements import FioPlace, Model, Server
from pinnace.errors import BenchError
from pinnace.slurm.commands import Slurm
from pinnace.slurm.options import argv as options_argv
from pinnace.slurm.options import merge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pinnace.bench.run_directory import Settings
    from pinnace.bench.tools import Tools
    from pinnace.slurm.options import SbatchOptions

SMALL = {"cpus-per-task": "1", "mem": "1200M"}  # of jobs that only start and end, where pods are jobs too
POLL = 0.2  # seconds
STARTUP_LIMIT = 600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Site:
    """What all sessions of a run share: the hosts, and the tools on the shared file system."""

    settings: Settings
    hosts: tuple[str, ...]
    cpus: int  # of the job, on each host
    threads: int = 1  # that the workload may use on its host
    addresses: Mapping[str, str]
    tools: Tools | None = None
    wait_limit: float = 3600.0

    @property
    def directory(self) -> Path:
        return Path(self.settings.directory)

    @property
    def client(self) -> str:
        return self.hosts[0]

    @property
    def server(self) -> str:
        return self.hosts[-1]

    def options(self, *hosts: str) -> SbatchOptions:
        """The user's options, for a job on these hosts."""
        return merge(self.settings.options, {"nodelist": ",".join(hosts), "nodes": str(len(hosts))})

    def of_tools(self, argv: Sequence[str]) -> list[str]:
        return self.tools.argv(argv) if self.tools else list(argv)


class Session(ABC):
    """A model that is ready to run tasks."""

    model: Model
    startup: float | None = None  # seconds, if it was measured when the session began

    def __init__(self, site: Site) -> None:
        self.site = site

    @abstractmethod
    def run(self, argv: Sequence[str], *, limit: float, place: FioPlace | None = None, stdin: str = "") -> str:
        """Run a command in the workload, in a directory of a place if there is one."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the session cannot go on."""

    @abstractmethod
    def pods_per_second(self, count: int, limit: float) -> float:
        """Start so many pods or jobs that end at once, and wait for their end."""

    @property
    @abstractmethod
    def job(self) -> int:
        """The job that holds the last host."""

    def serving(self, argv: Sequence[str], server: Server) -> AbstractContextManager[str]:
        """A server; gives its address."""
        if server is not Server.HOST:
            raise BenchError(f"{self.model.label} has no server in a {server}")
        return self._serving_on_host(argv)

    @contextlib.contextmanager
    def _serving_on_host(self, argv: Sequence[str]) -> Iterator[str]:
        host = self.site.server
        step = step_argv(self.job, host, self.site.of_tools(argv), cpus=1, directory=self.site.directory)
        with running(step):
            yield self.site.addresses[host]

    def _on_host(self, argv: Sequence[str], place: FioPlace | None) -> list[str]:
        """A command with the tools of a host, in a directory of its own if there is a place."""
        command = self.site.of_tools(argv)
        if place is None:
            return command
        base = str(self.site.directory) if place is FioPlace.DIRECTORY else ""
        return in_directory(base, self.site.settings.identifier, command)


class BareSession(Session):
    """Slurm alone: steps of a job that holds the hosts."""

    model = Model.BARE

    def __init__(self, site: Site, allocation: HostAllocation, startup: float | None) -> None:
        super().__init__(site)
        self._allocation = allocation
        self.startup = startup

    @property
    def job(self) -> int:
        return self._allocation.job

    def run(self, argv: Sequence[str], *, limit: float, place: FioPlace | None = None, stdin: str = "") -> str:
        command = self._on_host(argv, place)
        step = step_argv(self.job, self.site.client, command, cpus=self.site.cpus, directory=self.site.directory)
        return execute(step, limit=limit, stdin=stdin)

    def check(self) -> None:
        if self.job:  # what only submits jobs of its own holds no hosts
            self._allocation.check()

    def pods_per_second(self, count: int, limit: float) -> float:
        """An array of jobs."""
        slurm = Slurm()
        options = merge(
            without_hosts(self.site.settings.options), SMALL, {"array": f"1-{count}", "output": "/dev/null"}
        )
        begin = time.monotonic()
        number = slurm.sbatch("#!/bin/sh\nexec true\n", [*options_argv(options), "--job-name=pinnace-bench"])
        try:
            while any(not job.state.has_ended for job in slurm.squeue(number)):
                wait_a_moment(begin, limit, "the jobs have not ended")
        except BaseException:
            slurm.scancel(number)
            raise
        return count / (time.monotonic() - begin)


@contextlib.contextmanager
def bare_session(site: Site, *, startup: bool, workload: bool) -> Iterator[BareSession]:
    """Slurm alone. The start-up is that of a job of its own; hosts are held only if there is more to do."""
    seconds = bare_startup(site) if startup else None
    with contextlib.ExitStack() as stack:
        allocation = HostAllocation(site.options(*site.hosts), len(site.hosts), limit=site.wait_limit)
        if workload:
            stack.enter_context(allocation)
        yield BareSession(site, allocation, seconds)


def bare_startup(site: Site) -> float:
    """Seconds from srun to the clock that its job prints."""
    argv = ["srun", *options_argv(site.options(site.client)), "--ntasks=1", *PLAIN, "date", "+%s.%N"]
    begin = time.time()
    return float(execute(argv, limit=min(site.wait_limit, STARTUP_LIMIT))) - begin


def without_hosts(options: SbatchOptions) -> SbatchOptions:
    return {name: value for name, value in options.items() if name not in {"nodelist", "nodes", "exclusive"}}


def wait_a_moment(begin: float, limit: float, problem: str) -> None:
    """Between two looks. BenchError when the time is over."""
    if time.monotonic() - begin > limit:
        raise BenchError(f"{problem} within {limit:.0f} s")
    time.sleep(POLL)
