"""The program that is ``srun``, ``mpirun`` and ``mpiexec`` in containers.

    python -m pinnace.podjobs.ranks.launcher      compiles it for both architectures, for maintainers

It must run in any image, and users may have no compiler. So the binaries of ``launcher.c``, some 1500 bytes each, are
kept beside it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinnace.spec import NodeSpec

PROGRAMS = Path(__file__).parent / "programs"
NAMES = ("srun", "mpirun", "mpiexec")
COMPILERS = {"amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc"}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
INSIDE = "/run/pinnace"  # where containers have the program, and the server's socket
BIN = f"{INSIDE}/bin"
SOCKET = "socket"
NODE = "/run/pinnace/ranks"  # where the node has what its containers have at INSIDE
PROC = "/run/pinnace/proc"  # where it has its host's /proc
PASSED_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
)  # to the node's containers


def compile_argv(arch: str, output: Path) -> list[str]:
    """The command that compiles the program: without the C library, and reproducible."""
    language = ["-std=gnu11", "-Os", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-mgeneral-regs-only"]
    without = ["stack-protector", "asynchronous-unwind-tables", "pie", "ident"]
    link = ["-static", "-nostdlib", "-no-pie", "-s", "-Wl,--build-id=none,-z,norelro,-z,noseparate-code,-z,noexecstack"]
    flags = [*language, *(f"-fno-{name}" for name in without), *link]
    return [COMPILERS[arch], *flags, "-o", str(output), str(PROGRAMS / "launcher.c")]


def directory(scratch: Path) -> Path:
    """The directory that containers have at INSIDE. It is in the node's own, which no other user can enter."""
    return scratch / "ranks"


def binds(scratch: Path) -> dict[str, str]:
    """The bind mounts of a node for ranks; see ``sandbox.mounts``."""
    return {NODE: str(directory(scratch)), PROC: "/proc"}


def added(node: NodeSpec, environment: Mapping[str, str]) -> dict[str, Any]:
    """What ``node.services.runc_wrapper`` adds to the node's containers."""
    variables = {"SLURM_NTASKS": str(tasks(environment))} | {
        name: environment[name] for name in PASSED_VARIABLES if name in environment
    }
    before = [f"{BIN}/mpiexec", "-np", variables["SLURM_NTASKS"], *node.mpi.flags] if node.mpi else []
    return {
        "mount": {"destination": INSIDE, "source": NODE, "type": "bind", "options": ["rbind", "ro"]},
        "path": BIN,
        "environment": variables,
        "before": dict.fromkeys(node.mpi.containers if node.mpi else (), before),
    }


def tasks(environment: Mapping[str, str]) -> int:
    """The number of tasks of a job, from the tasks of each host in Slurm's notation, such as `2(x3),1`."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_TASKS_PER_NODE", "1"))
    return sum(int(count) * int(times or 1) for count, times in counts)


def install(scratch: Path) -> None:
    """Copy the program, under all its names, to the directory for the node's containers."""
    place = directory(scratch)
    binaries = place / "bin"
    binaries.mkdir(parents=True)
    for path in (place, binaries):
        path.chmod(0o755)
    for name in NAMES:
        shutil.copyfile(PROGRAMS / MACHINES[os.uname().machine], binaries / name)
        (binaries / name).chmod(0o755)


def listen(directory: Path) -> socket.socket:
    """Listen on a socket in a directory whose path may be too long for unix(7). Only the pod's users can enter it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptor = os.open(directory, os.O_PATH)
    try:
        with contextlib.suppress(FileNotFoundError):
            (directory / SOCKET).unlink()
        listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
        (directory / SOCKET).chmod(0o666)
    finally:
        os.close(descriptor)
    listener.listen(64)
    return listener


if __name__ == "__main__":
    for name in COMPILERS:
        subprocess.run(compile_argv(name, PROGRAMS / name), check=True, timeout=60)
        (PROGRAMS / name).chmod(0o644)
