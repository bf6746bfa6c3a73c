"""What the processes of a user take on this machine: memory, threads, descriptors and CPU time, by component."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path

from pinnace.network.listening import local_addresses

__all__ = ["Process", "by_component", "component", "has_address", "look"]

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process at one moment. ``mebibytes`` has shared pages divided among those who share them."""

    pid: int
    host_pid: int  # on its own host: each has a PID namespace
    component: str
    mebibytes: float
    threads: int
    descriptors: int
    sockets: int
    cpu_seconds: float


def component(argv: list[str]) -> str:
    """Which part of a node a command is."""
    modules = [word for flag, word in pairwise(argv) if flag == "-m" or flag.endswith("/pinnace/interpreter.py")]
    name = modules[0] if modules else Path(argv[0]).name
    return name.removeprefix("pinnace.")


def _field(text: str, name: str) -> int:
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def _pids(status: str) -> list[str]:
    """The numbers of a process in all PID namespaces, the outermost first."""
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]


def has_address(process: Process, address: str) -> bool:
    """Whether a process is in the network namespace of the host with this address."""
    try:
        table = (PROC / str(process.pid) / "net" / "fib_trie").read_text()
    except OSError:
        return False
    return IPv4Address(address) in local_addresses(table)


def _process(entry: Path) -> Process:
    argv = (entry / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
    numbers = (entry / "stat").read_text().rpartition(")")[2].split()
    status = (entry / "status").read_text()
    descriptors = [_target(link) for link in (entry / "fd").iterdir()]
    return Process(
        pid=int(entry.name),
        host_pid=int(_pids(status)[min(1, len(_pids(status)) - 1)]),
        component=component(argv),
        mebibytes=_field((entry / "smaps_rollup").read_text(), "Pss:") / 1024,
        threads=_field(status, "Threads:"),
        descriptors=len(descriptors),
        sockets=sum(target.startswith("socket:") for target in descriptors),
        cpu_seconds=(int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK"),
    )


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def look(uid: int) -> list[Process]:
    """All processes of a user. Those that end meanwhile are left out."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, StopIteration):
                if entry.stat().st_uid == uid and (entry / "cmdline").read_bytes():
                    found.append(_process(entry))
    return found


def by_component(processes: list[Process]) -> dict[str, dict[str, float]]:
    """Sums of each component."""
    table: dict[str, dict[str, float]] = {}
    for process in processes:
        row = table.setdefault(
            process.component, {"processes": 0, "mebibytes": 0.0, "threads": 0, "descriptors": 0, "cpu_seconds": 0.0}
        )
        row["processes"] += 1
        for name in ("mebibytes", "threads", "descriptors", "cpu_seconds"):
            row[name] += getattr(process, name)
    return table
