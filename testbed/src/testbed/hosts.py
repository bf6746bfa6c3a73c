"""Starting hosts, finding them, and running commands on them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.entry import Entry
from testbed.errors import BedError, WaitError
from testbed.namespaces import start_time
from testbed.state import Directories, Holder
from testbed.waiting import tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from testbed.cgroups import Cgroups
    from testbed.plan import Host, Plan

__all__ = ["Hosts", "start_hosts"]

START_LIMIT = 90.0


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts that run, by name."""

    directories: Directories
    cgroups: Cgroups
    plan: Plan
    holders: dict[str, Holder]

    def holder(self, name: str) -> Holder:
        host = self.plan.host(name)
        holder = self.holders.get(host.name)
        if holder is None or not holder.alive():
            raise BedError(f"{host.name} is down.", hint=f"testbed start-host {host.name}")
        return holder

    def is_up(self, name: str) -> bool:
        holder = self.holders.get(name)
        return holder is not None and holder.alive()

    def command(
        self,
        argv: Sequence[str],
        *,
        user: str,
        on: str,
        cwd: str = "",
        log: str = "",
        variables: dict[str, str] | None = None,
    ) -> list[str]:
        """The command that, on the machine, runs ``argv`` on a host; with ``log`` as a daemon."""
        holder = self.holder(on)
        entry = Entry(
            host=on,
            pid=holder.pid,
            start_time=holder.start_time,
            cgroups=tuple(str(group) for group in self.cgroups.of(on)),
            user=user,
            cwd=cwd,
            log=log,
            variables=variables or {},
            limits=self.plan.limits,
        )
        return [*entry.argv(), *argv]

    def log(self, host: str, path: str) -> Path:
        """Where the machine has a file of the host's /var/log."""
        return self.directories.host(host) / "log" / Path(path).relative_to("/var/log")


def start_hosts(hosts: Iterable[Host], plan: Plan, directories: Directories, cgroups: Cgroups) -> dict[str, Holder]:
    """Start the first process of each, all at once, and wait until their mounts are made."""
    for host in (hosts := tuple(hosts)):
        cgroups.create(host.name)
    started = {host.name: start_init(host, plan, directories) for host in hosts}
    return {name: await_init(name, process, directories) for name, process in started.items()}


def init_log(host: str, directories: Directories) -> Path:
    return directories.host(host) / "init.log"


def start_init(host: Host, plan: Plan, directories: Directories) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "testbed.init",
        str(directories.state),
        host.name,
        json.dumps(plan.as_json()),
    ]
    with init_log(host.name, directories).open("a") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd="/",
            start_new_session=True,
        )


def await_init(host: str, process: subprocess.Popen[str], directories: Directories) -> Holder:
    """The two lines that it says may come in any order; its pipe ends when it has let go, or died."""
    try:
        lines = process.communicate(timeout=START_LIMIT)[0].splitlines()
    except subprocess.TimeoutExpired:
        raise WaitError(f"Waited {START_LIMIT:.0f} s for the mounts of {host}, in vain.") from None
    pids = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    begun = start_time(pids[0]) if pids else None
    if "ready" not in lines or begun is None:
        raise BedError(f"The host {host} did not start:\n{tail(init_log(host, directories))}")
    return Holder(pid=pids[0], start_time=begun)
