"""The program that is ``srun``, ``mpirun`` and ``mpiexec`` in containers.

    python -m pinnace.podjobs.ranks.launcher      compiles it for both architectures, for maintainers

It must run in any image, and be there for users without a compiler; so what the compiler made of ``launcher.c``, some
1500 bytes, is kept beside it.
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
INSIDE = "/run/pinnace"  # where containers find the program, and the socket that it asks
BIN = f"{INSIDE}/bin"
SOCKET = "socket"
NODE = "/run/pinnace/ranks"  # where the node has what its containers find at INSIDE
PROC = "/run/pinnace/proc"  # where it has its host's /proc
TOLD = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK")  # that containers may know


def compile_argv(arch: str, output: Path) -> list[str]:
    """The command that makes the program: nothing of the C library, and nothing that differs from run to run."""
    language = ["-std=gnu11", "-Os", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-mgeneral-regs-only"]
    without = ["stack-protector", "asynchronous-unwind-tables", "pie", "ident"]
    link = ["-static", "-nostdlib", "-no-pie", "-s", "-Wl,--build-id=none,-z,norelro,-z,noseparate-code,-z,noexecstack"]
    flags = [*language, *(f"-fno-{name}" for name in without), *link]
    return [COMPILERS[arch], *flags, "-o", str(output), str(PROGRAMS / "launcher.c")]


def directory(scratch: Path) -> Path:
    """What containers find at INSIDE, in the node's directory: nobody else can reach it there."""
    return scratch / "ranks"


def binds(scratch: Path) -> dict[str, str]:
    """What a node needs of its host for ranks; see ``sandbox.mounts``."""
    return {NODE: str(directory(scratch)), PROC: "/proc"}


def added(node: NodeSpec, environment: Mapping[str, str]) -> dict[str, Any]:
    """What ``node.services.runc_wrapper`` adds to the node's containers."""
    told = {"SLURM_NTASKS": str(tasks(environment))} | {name: environment[name] for name in TOLD if name in environment}
    before = [f"{BIN}/mpiexec", "-np", told["SLURM_NTASKS"], *node.mpi.flags] if node.mpi else []
    return {
        "mount": {"destination": INSIDE, "source": NODE, "type": "bind", "options": ["rbind", "ro"]},
        "path": BIN,
        "environment": told,
        "before": dict.fromkeys(node.mpi.containers if node.mpi else (), before),
    }


def tasks(environment: Mapping[str, str]) -> int:
    """How many tasks a job has, where Slurm says only how many each host has, as in `2(x3),1`."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_TASKS_PER_NODE", "1"))
    return sum(int(count) * int(times or 1) for count, times in counts)


def install(scratch: Path) -> None:
    """Put the program, under all its names, where the node's containers will find it."""
    place = directory(scratch)
    binaries = place / "bin"
    binaries.mkdir(parents=True)
    for path in (place, binaries):
        path.chmod(0o755)
    for name in NAMES:
        shutil.copyfile(PROGRAMS / MACHINES[os.uname().machine], binaries / name)
        (binaries / name).chmod(0o755)


def listen(directory: Path) -> socket.socket:
    """The socket in a directory that may have a long name; see unix(7). Its directory is for the pod's users alone."""
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
