"""Clusters in a job, measured against the bare machine in the same run.

    .venv/bin/python benchmarks/over.py [ROUNDS]

Start-up: from `pinnace run` to the first line of the workload, for one node and for two, on an idle test bed with the
scheduler's own delay switched off. Footprint: memory (shared pages divided among those who share them) and CPU of every
process of an idle cluster. Medians, and all figures. The network is measured by benchmarks.network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from pinnace.components.store import user_root
from testbed import Bed
from testbed.images import build_image
from testbed.plan import Plan
from testbed.software import install
from testbed.state import Directories

PROJECT = Path(__file__).parents[1]
STATE = Directories(state=Path(os.environ.get("TESTBED_BENCH_STATE", "/var/lib/testbed-bench")))
SETTLED = 150  # seconds after which a cluster without pods does nothing but wait: what starts it ends after two minutes
IDLE = 30  # seconds over which its CPU is counted


def say(text: str) -> None:
    print(text, flush=True)


def figures(name: str, values: list[float], unit: str) -> None:
    say(f"{name:36} {median(values):7.2f} {unit}   ({', '.join(f'{value:.2f}' for value in values)})")


def first_line(bed: Bed, nodes: int) -> float:
    """Seconds from the command to the first line of a container."""
    argv = bed.command(["pinnace", "run", "-N", str(nodes), "-t", "10", "--image", "busybox.tar", "hello.yaml"])
    begin = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the workload said nothing")
        taken = time.monotonic() - begin
        process.communicate(timeout=120)
    return taken


def component(argv: list[str]) -> str:
    """Which part of a node a command is."""
    modules = [word for flag, word in pairwise(argv) if flag == "-m" or flag.endswith("/pinnace/interpreter.py")]
    return modules[0] if modules else Path(argv[0]).name


def processes(uid: int) -> dict[int, str]:
    """The processes of a user on all hosts."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                argv = (entry / "cmdline").read_bytes().decode().split("\0")
                if entry.stat().st_uid == uid and argv[0]:
                    found[int(entry.name)] = component(argv)
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mebibytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def footprint(bed: Bed) -> None:
    bed.run(["pinnace", "up", "-N", "2", "--mem", "4G"], timeout=120)
    time.sleep(SETTLED)
    uid = (STATE.home / "alice").stat().st_uid
    names = processes(uid)
    before = {pid: cpu_seconds(pid) for pid in names}
    time.sleep(IDLE)
    table: dict[str, list[float]] = {}
    for pid in names.keys() & processes(uid).keys():  # not those that come and go
        name = names[pid]
        row = table.setdefault(name, [0, 0, 0])
        row[0] += 1
        row[1] += mebibytes(pid)
        row[2] += (cpu_seconds(pid) - before[pid]) / IDLE * 100
    say(f"{'idle, 2 nodes':36} {'processes':>9} {'MiB':>7} {'% CPU':>7}")
    table["all"] = [sum(column) for column in zip(*table.values(), strict=True)]
    for name, row in sorted(table.items(), key=lambda item: -item[1][1]):
        say(f"{name:36} {row[0]:9.0f} {row[1]:7.0f} {row[2]:7.2f}")
    bed.run(["pinnace", "down"], timeout=120)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    bed = Bed.up(Plan(hosts=2, fast=True), STATE)
    try:
        install(bed, PROJECT, share=user_root().parent)
        home = STATE.home / "alice"
        shutil.copy(PROJECT / "examples" / "hello.yaml", home)
        shutil.copy(build_image("busybox"), home / "busybox.tar")
        footprint(bed)
        for nodes in (1, 2):
            figures(f"first line, {nodes} node(s)", [first_line(bed, nodes) for _ in range(rounds)], "s")
    finally:
        bed.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
