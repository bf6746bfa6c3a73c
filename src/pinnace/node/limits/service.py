"""The service of a node that makes limits hold: it ends containers that use more memory than they may.

It sleeps while no container has a limit. A container that is over its limit is stopped at once (SIGSTOP), so that it
grows no more; containerd is told that it ran out of memory; then it is killed. The pod's status is that of a container
that the kernel has killed for its cgroup: ``OOMKilled``, exit code 137.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.controlplane.tasks import TASKS
from pinnace.devices.protobuf import bytes_field
from pinnace.node.containers import read_container
from pinnace.node.limits import affinity
from pinnace.node.limits.container_limits import LIMITS, ContainerLimits
from pinnace.node.limits.eviction import Eviction
from pinnace.node.limits.limiter import FIFO, LOCK
from pinnace.node.limits.memory import ProcessTable, Watched, over_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pinnace.node.limits.affinity import CpuPool
    from pinnace.spec import NodeSpec

CPUS_INTERVAL = 5.0  # seconds between looks whether containers are on the CPUs that they should be on
START_INTERVAL = 0.1  # seconds between looks whether a container that was created has a process
START_LIMIT = 120.0  # seconds for that
EVICTION_INTERVAL = 0.2  # seconds between looks whether an eviction is done
PUBLISH_INTERVAL = 0.01  # seconds between looks whether containerd was told
PUBLISH_LIMIT = 3.0  # seconds for that; containerd may be starting again
PUBLISH_RETRY = 0.2  # seconds between attempts
MIB = 1 << 20


def say(text: str) -> None:
    """Write to the service's log."""
    sys.stderr.write(f"{dt.datetime.now(dt.UTC).isoformat(timespec='milliseconds')} {text}\n")
    sys.stderr.flush()


def task_oom(container: str) -> bytes:
    """containerd's event TaskOOM, as a protobuf ``Any``."""
    return bytes_field(1, b"containerd.events.TaskOOM") + bytes_field(2, bytes_field(1, container.encode()))


def publish_argv(containerd: str, socket: str) -> list[str]:
    return [containerd, "--address", socket, "publish", "--topic", "/tasks/oom", "--namespace", "k8s.io"]


def charged_volumes(limits: Mapping[str, ContainerLimits]) -> dict[str, tuple[str, ...]]:
    """The tmpfs that count towards each container.

    The kernel charges them to those who wrote them, which cannot be seen from outside. Of all containers that can write
    to one, the one with the highest limit is charged; none if one of them has no limit.
    """
    writers: dict[int, list[tuple[float, str, str]]] = {}
    for container, about in limits.items():
        for volume in about.tmpfs:
            with contextlib.suppress(OSError):  # it is unmounted already
                limit = float("inf") if about.memory is None else about.memory
                writers.setdefault(os.stat(volume).st_dev, []).append((limit, container, volume))  # noqa: PTH116
    charged: dict[str, tuple[str, ...]] = {}
    for candidates in writers.values():
        limit, container, volume = max(candidates)
        if limit != float("inf"):
            charged[container] = (*charged.get(container, ()), volume)
    return charged


@dataclass(kw_only=True)
class Kill:
    """A container that is being killed."""

    watched: Watched
    deadline: float
    publisher: subprocess.Popen[bytes] | None = None
    next_attempt: float = 0.0


@dataclass(kw_only=True)
class LimitsService:
    """Watches the containers of a node. ``publish`` is the command that tells containerd of an event."""

    tasks: Path
    run_directory: Path
    pool: CpuPool
    publish: list[str]
    clock: Callable[[], float] = time.monotonic
    table: ProcessTable = field(default_factory=ProcessTable)
    limits: dict[str, ContainerLimits] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)  # created, without a process; until when to wait for one
    watched: dict[str, Watched] = field(default_factory=dict)
    kills: dict[str, Kill] = field(default_factory=dict)
    cpus_due: float = 0.0
    eviction: Eviction | None = None
    confined: bool = False  # whether any container is confined to some CPUs

    def run(self) -> None:
        fifo = os.open(self.run_directory / FIFO, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        poll = select.poll()
        poll.register(fifo, select.POLLIN)
        self.changed(path.parent.name for path in self.tasks.glob(f"*/{LIMITS}"))
        while True:
            pause = self.step()
            if poll.poll(None if pause is None else pause * 1000):
                self.changed(os.read(fifo, 1 << 16).decode().split())

    def changed(self, containers: Iterable[str]) -> None:
        """Containers were created or updated."""
        for container in containers:
            if limits := ContainerLimits.read(self.tasks / container):
                self.limits[container] = limits
                self._adopt(container, limits)
        self._charge()
        self.confined = self._has_affinity()

    def _adopt(self, container: str, limits: ContainerLimits) -> None:
        watched = self.watched.get(container)
        if limits.memory is None:
            self._drop(container)
        elif watched:
            watched.limit, watched.due = limits.memory, 0.0
        elif container not in self.kills:
            self.waiting.setdefault(container, self.clock() + START_LIMIT)

    def step(self) -> float | None:
        """Do what is due. Gives the seconds until something is; None if only a change can bring that about."""
        now = self.clock()
        self._begin(now)
        if self.watched:
            self._look(now)
        self._finish()
        self._cpus(now)
        if self.eviction:
            self.eviction.step(now)
        return self._pause()

    def _begin(self, now: float) -> None:
        """Watch the containers that have a process by now."""
        for container, deadline in list(self.waiting.items()):
            found, limits = read_container(self.tasks / container), self.limits.get(container)
            with contextlib.suppress(OSError):  # it has ended already
                if found and limits and limits.memory is not None:
                    members = self.table.add(found.pid)
                    self.watched[container] = Watched(container=container, limit=limits.memory, members=members)
                    self._charge()
            if found or now > deadline or not limits:
                del self.waiting[container]

    def _look(self, now: float) -> None:
        self.table.search(now)
        for container, watched in list(self.watched.items()):
            if watched.members.first not in watched.members.processes:
                self._drop(container)
                self._charge()
            elif watched.due <= now and (memory := over_limit(watched, now)):
                self._kill(watched, memory)

    def _kill(self, watched: Watched, memory: int) -> None:
        self._signal(watched, signal.SIGSTOP)
        about = read_container(self.tasks / watched.container)
        name = f"{about.namespace}/{about.pod}, container {about.name}" if about else watched.container
        say(f"OOMKilled: {name} uses {memory / MIB:.1f} MiB, its limit is {watched.limit / MIB:.1f} MiB")
        del self.watched[watched.container]
        self.kills[watched.container] = Kill(watched=watched, deadline=self.clock() + PUBLISH_LIMIT)

    def _finish(self) -> None:
        """Kill the containers of which containerd was told; also those of which it does not hear."""
        for container, kill in list(self.kills.items()):
            now = self.clock()
            code = kill.publisher.poll() if kill.publisher else None
            if code == 0 or now > kill.deadline:
                if kill.publisher and code is None:
                    kill.publisher.kill()
                    kill.publisher.wait()
                self.table.search(now)
                self._signal(kill.watched, signal.SIGKILL)
                say(f"killed {container}; containerd was {'told' if code == 0 else 'not told'} why")
                self.table.remove(kill.watched.members)
                del self.kills[container]
                self._charge()
            elif (kill.publisher is None or code is not None) and now >= kill.next_attempt:
                kill.publisher, kill.next_attempt = self._publish(container), now + PUBLISH_RETRY

    def _publish(self, container: str) -> subprocess.Popen[bytes] | None:
        try:
            publisher = subprocess.Popen(self.publish, stdin=subprocess.PIPE, stdout=sys.stderr)
        except OSError as error:  # there may be no process to be had
            say(f"containerd is not told that {container} ran out of memory: {error}")
            return None
        if publisher.stdin:
            with contextlib.suppress(BrokenPipeError), publisher.stdin as stdin:
                stdin.write(task_oom(container))
        return publisher

    @staticmethod
    def _signal(watched: Watched, number: signal.Signals) -> None:
        """To all processes: in a pod with one PID namespace for all, the first one's end does not end the others."""
        for pid in watched.members.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def _cpus(self, now: float) -> None:
        """Containers end, and leave CPUs to others; processes change their own affinity."""
        if not self.confined or now < self.cpus_due:
            return
        self.cpus_due = now + CPUS_INTERVAL
        affinity.rebalance(self.tasks, self.pool, self.run_directory / LOCK)
        affinity.enforce(self.tasks)
        self.confined = self._has_affinity()

    def _has_affinity(self) -> bool:
        return any((self.tasks / name / affinity.AFFINITY).exists() for name in self.limits)

    def _drop(self, container: str) -> None:
        self.waiting.pop(container, None)
        if watched := self.watched.pop(container, None):
            self.table.remove(watched.members)

    def _charge(self) -> None:
        """Say which volumes count towards which container. Containers that have ended are forgotten."""
        self.limits = {name: limits for name, limits in self.limits.items() if (self.tasks / name).is_dir()}
        charged = charged_volumes(self.limits)
        for container, watched in self.watched.items():
            watched.volumes = charged.get(container, ())

    def _pause(self) -> float | None:
        now = self.clock()
        times = [watched.due - now for watched in self.watched.values()]
        times += [START_INTERVAL] if self.waiting else []
        times += [PUBLISH_INTERVAL] if self.kills else []
        times += [self.cpus_due - now] if self.confined else []
        times += [max(self.eviction.due - now, EVICTION_INTERVAL)] if self.eviction else []
        return max(0.0, min(times)) if times else None


def serve(node: NodeSpec, pool: CpuPool, run_directory: Path, containerd_socket: str) -> None:
    """Be the service of a node."""
    kubeconfig = Path(node.secret(f"node-{node.name}.kubeconfig"))
    eviction = Eviction(allocation=node.allocation, kubeconfig=kubeconfig, node=node.name)
    LimitsService(
        tasks=TASKS,
        run_directory=run_directory,
        pool=pool,
        publish=publish_argv(node.binary("containerd"), containerd_socket),
        # What is over the limit of a job that is one pod's is Slurm's to end, and to account.
        eviction=None if node.pod else eviction,
    ).run()
