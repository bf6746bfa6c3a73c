"""Whether Slurm keeps a job to its memory by a cgroup (``ConstrainRAMSpace``): read from outside the node."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
JOB = "job_"  # begins the name of a job's cgroup
UNLIMITED = 1 << 60  # bytes; cgroup v1 writes a number where there is no limit


def in_memory_cgroup(cgroups: str, root: Path = ROOT) -> bool:
    """Whether a cgroup of a Slurm job, from ``/proc/self/cgroup``, has a limit of memory."""
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not any(part.startswith(JOB) for part in PurePosixPath(path).parts):
            continue
        if "memory" in controllers.split(","):
            directory, file = root / "memory", "memory.limit_in_bytes"
        elif not controllers:
            directory, file = root, "memory.max"
        else:
            continue
        here = directory / path.lstrip("/")
        if any(_has_limit(parent / file) for parent in (here, *here.parents) if parent.is_relative_to(directory)):
            return True
    return False


def _has_limit(file: Path) -> bool:
    with contextlib.suppress(OSError):
        text = file.read_text().strip()
        return text.isdigit() and int(text) < UNLIMITED
    return False
