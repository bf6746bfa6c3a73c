"""Recording: every mark is one short line, appended to a file by a single write(2).

A node's processes share a file in memory, which the agent opens before it forks any of them; the agent copies it to the
cluster's directory whenever the node's services have changed. So nothing on the shared file system has two writers, and
nobody waits for it. Recording never fails: a mark that cannot be written is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import weakref
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIRECTORY = "timeline"
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
READ_SIZE = 1 << 20  # bytes of a node's marks that are kept: a hundred for a start, a few for every restart


class MarkEvent(StrEnum):
    """What a mark says of its step. READY is for services, which go on."""

    BEGIN = "begin"
    READY = "ready"
    END = "end"


class StepName(StrEnum):
    """The steps that are no services. Services and tasks have their own names (``pinnace status``)."""

    COMMAND = "command"  # the command line's own start
    DIRECTORY = "directory"
    IMAGES = "load images"
    SUBMISSION = "submission"
    SBATCH = "sbatch"  # of a node that joins: a part of its submission
    BATCH_SCRIPT = "batch script"
    API_WAIT = "wait for the API"
    NODES_WAIT = "wait for the nodes"
    APPLY = "kubectl apply"
    FIRST_LINE = "first line"
    WORKLOAD = "workload"
    CLUSTER_END = "end of the cluster"
    AGENT = "agent"
    AGENT_LOAD = "load the agent"
    JOIN = "join the cluster"
    BIND = "bind the pod"
    START_THROTTLE = "start throttle"
    IMAGE_CACHE = "lease image cache"
    NAMESPACES = "namespaces"
    MOUNTS = "mounts"
    NETWORK = "network"
    API = "API answers"
    ROLES = "API's roles"
    NODE_END = "end of the node"
    INIT_END = "end of init"
    FILES = "remove files"


class Recorder:
    """Marks of this process, and of those that it forks after its first one. They stay in memory until ``write_to``."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._close: Callable[[], object] = lambda: None
        self._path: Path | None = None
        self._saved = 0

    def mark(self, step: str, event: MarkEvent, *, at: float | None = None) -> None:
        """Note that something has happened to a step, now or at another time (seconds since the epoch)."""
        line = json.dumps({"time": round(at or time.time(), 6), "step": step, "event": event})
        with contextlib.suppress(OSError):
            if self._descriptor < 0:
                descriptor = os.memfd_create("timeline", os.MFD_CLOEXEC)
                fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
                self._use(descriptor)
            os.write(self._descriptor, f"{line}\n".encode())

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Mark the beginning and the end of what is done meanwhile, however it ends."""
        self.mark(name, MarkEvent.BEGIN)
        try:
            yield
        finally:
            self.mark(name, MarkEvent.END)

    def ready(self, name: str, ask: Callable[[], bool]) -> Callable[[], bool]:
        """The same question; its first yes is marked."""
        marked = False

        def look() -> bool:
            nonlocal marked
            answer = ask()
            if answer and not marked:
                marked = True
                self.mark(name, MarkEvent.READY)
            return answer

        return look

    def write_to(self, path: Path) -> None:
        """From now on append to a file, which no other process writes; and what was marked before."""
        if self._path == path:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, APPEND, 0o600)
            if self._path is None and self._descriptor >= 0:
                os.write(descriptor, os.pread(self._descriptor, READ_SIZE, 0))
            self._use(descriptor)
            self._path = path

    def close(self) -> None:
        """Let go of the file: NFS keeps the directory of one that is open. Later marks stay in memory."""
        close, self._close = self._close, lambda: None
        self._descriptor, self._path = -1, None
        close()

    def save(self, path: Path) -> None:
        """Copy the marks to a file that others read; it appears whole. Nothing is done if there are no new ones."""
        with contextlib.suppress(OSError):
            size = os.fstat(self._descriptor).st_size
            if size == self._saved:
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}")  # a node has one agent
            with open(partial, "wb", opener=_private) as file:
                file.write(os.pread(self._descriptor, READ_SIZE, 0))
            partial.rename(path)
            self._saved = size

    def _use(self, descriptor: int) -> None:
        self._close()
        self._descriptor, self._close = descriptor, weakref.finalize(self, os.close, descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def process_began() -> float:
    """When this process was started, to a hundredth of a second (see proc(5))."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def node_marks(directory: Path, node: str) -> Path:
    """The file of a node's marks, in the directory of its cluster."""
    return directory / DIRECTORY / "nodes" / f"{node}.jsonl"


def submission_marks(directory: Path, node: str) -> Path:
    """The file of the marks of whoever submitted the job of a node that joins. They are that node's, too."""
    return directory / DIRECTORY / "submissions" / f"{node}.jsonl"


def command_marks(directory: Path) -> Path:
    """The file of the marks of this command."""
    return directory / DIRECTORY / "commands" / f"{os.uname().nodename}-{os.getpid()}.jsonl"


def batch_mark(directory: str = DIRECTORY) -> str:
    """A line for a batch script in bash that marks its beginning, with the cluster's directory as working directory.

    Bash before 5.0 has no such clock; what it writes is no mark.
    """
    mark = r"{\"time\": ${EPOCHREALTIME/,/.}, \"step\": \"batch script\", \"event\": \"begin\"}"
    return f'echo "{mark}" 2>/dev/null >{directory}/batch.jsonl'
