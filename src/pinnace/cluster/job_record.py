"""``job.json`` of a cluster's directory: the Slurm job or the process that runs the cluster."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ClusterJobRecord:
    """What runs a cluster: a batch job, or a process of one host with which the cluster ends.

    The process is srun, or the agent of a local cluster. ``owner.json`` has the same form; its process is the command
    that has created the cluster.
    """

    job: int | None = None
    pid: int | None = None
    host: str = ""
    began: str = ""  # when the process started: the kernel gives its number again
    pid_namespace: str = ""
    nodes: int = 1
    local: bool = False  # without Slurm
    retain: bool = False  # the directory stays when the cluster has ended

    @staticmethod
    def of_process(pid: int, *, nodes: int, local: bool, retain: bool = False) -> ClusterJobRecord:
        """The record of a process on this host."""
        return ClusterJobRecord(
            pid=pid, host=os.uname().nodename, began=process_start(pid), pid_namespace=pid_namespace(),
            nodes=nodes, local=local, retain=retain,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether that very process runs on this host."""
        here = self.pid is not None and self.host == os.uname().nodename
        return here and bool(self.began) and process_start(self.pid or 0) == self.began

    @property
    def can_be_checked(self) -> bool:
        """Whether a false ``alive`` is certain: here are the host, the boot and the PID namespace of the process."""
        here = self.host == os.uname().nodename and self.began.split(" ")[0] == boot_id()
        return self.pid is not None and here and self.pid_namespace == pid_namespace()


def process_start(pid: int) -> str:
    """When a process started: the boot, and the ticks since then (see proc(5)). Empty if there is no such process."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{boot_id()} {fields[19]}" if fields[0] not in "ZX" else ""
    return ""


def boot_id() -> str:
    """Which boot of this host it is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """In which processes have the numbers that this process sees."""
    return str(Path("/proc/self/ns/pid").readlink())
