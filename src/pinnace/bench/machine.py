"""What a host is. Runs on compute nodes too, and imports the standard library alone.

python -m pinnace.bench.machine        prints it as JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def describe() -> dict[str, object]:
    """The processor, its caches, the memory, the kernel, and the load of this moment."""
    cpuinfo = read("/proc/cpuinfo")
    memory = re.search(r"MemTotal:\s+(\d+) kB", read("/proc/meminfo"))
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return {
        "host": os.uname().nodename,
        "cpu": model[1] if model else platform.machine(),
        "cpus": os.cpu_count(),
        "threads": len(os.sched_getaffinity(0)),
        "caches": caches(Path("/sys/devices/system/cpu")),
        "memory": int(memory[1]) << 10 if memory else 0,
        "kernel": os.uname().release,
        "load": os.getloadavg()[0],
        "scratch": os.environ.get("PINNACE_SCRATCH") or os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir(),
        "time": time.time(),
    }


def caches(root: Path) -> int:
    """The bytes of all caches of the last level."""
    levels: dict[int, dict[str, int]] = {}
    for index in root.glob("cpu[0-9]*/cache/index*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            size = (index / "size").read_text().strip()
            level = int((index / "level").read_text())
            shared = (index / "shared_cpu_list").read_text()
            levels.setdefault(level, {})[shared] = int(size[:-1]) * UNITS[size[-1]]
    return sum(levels[max(levels)].values()) if levels else 0


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def main() -> None:
    sys.stdout.write(json.dumps(describe()) + "\n")


if __name__ == "__main__":
    main()
