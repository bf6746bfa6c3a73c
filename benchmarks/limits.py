"""What it costs to watch containers with memory limits: the service alone, on containers of two sleeping processes.

    unshare -Urmpf --mount-proc .venv/bin/python benchmarks/limits.py --containers 100 --seconds 20 [--busy]

The PID namespace is that of a node, in which no other processes come and go; with ``--busy``, about a hundred a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from pinnace.node.limits.affinity import CpuPool
from pinnace.node.limits.container_limits import ContainerLimits
from pinnace.node.limits.service import LimitsService

NOTES = {"container-type": "container", "sandbox-namespace": "n", "sandbox-name": "p", "container-name": "c"}


def create(bundle: Path) -> subprocess.Popen[bytes]:
    """A container: a mount namespace with two processes."""
    process = subprocess.Popen(["unshare", "-Urm", "sh", "-c", "sleep 600 & wait"], process_group=0)
    bundle.mkdir()
    config = {"annotations": {f"io.kubernetes.cri.{key}": value for key, value in NOTES.items()}}
    (bundle / "config.json").write_text(json.dumps(config))
    (bundle / "init.pid").write_text(str(process.pid))
    ContainerLimits(memory=1 << 30, tmpfs=("/dev/shm",)).write(bundle)  # noqa: S108
    return process


def measure(service: LimitsService, seconds: float) -> tuple[int, float]:
    """The looks in that time, and the CPU time that they took."""
    end, begin, looks = time.monotonic() + seconds, time.process_time(), 0
    while time.monotonic() < end:
        pause = service.step()
        looks += 1
        time.sleep(seconds if pause is None else pause)
    return looks, time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    cpus = frozenset(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        tasks = Path(name) / "tasks"
        tasks.mkdir()
        pool = CpuPool(available=cpus, permitted=cpus)
        service = LimitsService(tasks=tasks, run_directory=Path(name), pool=pool, publish=["false"])
        processes = [create(tasks / str(number)) for number in range(options.containers)]
        if options.busy:
            processes.append(subprocess.Popen(["sh", "-c", "while :; do sleep 0.01; done"], process_group=0))
        try:
            time.sleep(2)
            service.changed(str(number) for number in range(options.containers))
            service.step()
            members = sum(len(watched.members.processes) for watched in service.watched.values())
            looks, cpu = measure(service, options.seconds)
        finally:
            for process in processes:
                os.killpg(process.pid, 9)
                process.wait()
    share = cpu / options.seconds
    print(f"{len(service.watched)} containers, {members} processes, {len(list(Path('/proc').glob('[0-9]*')))} in all")
    print(f"{looks / options.seconds:.1f} looks a second, {cpu / looks * 1000:.2f} ms each: {share:.2%} of a core")


if __name__ == "__main__":
    main()
