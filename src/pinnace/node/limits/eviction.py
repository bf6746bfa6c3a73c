"""What happens when a node runs out of memory: pods are evicted in the kubelet's order, before Slurm kills the job.

The kubelet's own eviction goes by the memory of a cgroup, and does not know what the job may use. This one goes by the
processes of the node. The pod that is evicted has the status that the kubelet would give it, and its processes are
killed. A process is forked for that, because the API may not answer at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pinnace.node.containers import all_pids, read_containers
from pinnace.node.forking import fork
from pinnace.node.limits.memory import PAGE, read, status_memory
from pinnace.node.processes import owners, read_processes, total

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.kube.client import Api
    from pinnace.spec import Allocation

    Object = dict[str, Any]

MIB = 1 << 20
THRESHOLD = 100 * MIB  # the kubelet's default for memory.available
OUTSIDE = 200 * MIB  # of the agent and the processes beside it, which Slurm counts, and which are not seen from here
GROWTH = 1 << 30  # bytes a second that a node is expected to grow by at most
MIN_INTERVAL, MAX_INTERVAL = 0.2, 5.0  # seconds between looks
CRITICAL = 2_000_000_000  # the priority from which on the kubelet evicts no pod
EVICTED = "Evicted"
FINISH_LIMIT = 30.0  # seconds in which the kubelet must have ended a pod
FINISH_INTERVAL = 0.5
API_TIMEOUT = 3.0


@dataclass(kw_only=True)
class Eviction:
    """Looks at the memory of a node. ``pods`` are the API's, of this node."""

    allocation: Allocation
    kubeconfig: Path
    node: str
    due: float = 0.0
    child: int = 0

    def step(self, now: float) -> None:
        if now < self.due or self._busy():
            return
        free = available(self.allocation)
        self.due = now + min(MAX_INTERVAL, max(MIN_INTERVAL, (free - THRESHOLD) / GROWTH))
        if free < THRESHOLD:
            with contextlib.suppress(OSError):  # There is no process to be had.
                self.child = fork(lambda: evict_one(self.kubeconfig, self.node, free))

    def _busy(self) -> bool:
        """Whether an eviction is still under way."""
        if self.child:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.child, os.WNOHANG) == (0, 0):
                    return True
            self.child = 0
        return False


def available(allocation: Allocation) -> int:
    """How much more memory the node may take: of what Slurm has allocated, else of what the host has."""
    if allocation.memory is None:
        return _host_available(read("/proc/meminfo"))
    used = _private() if allocation.memory_cgroup else _resident() + OUTSIDE
    return allocation.memory - used


def _resident() -> int:
    """As Slurm's gatherer counts, which ends jobs where there is no memory cgroup: what is shared counts for each."""
    return sum(_resident_pages(pid) for pid in all_pids()) * PAGE


def _resident_pages(pid: str) -> int:
    with contextlib.suppress(OSError):  # it has ended
        statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int((os.read(statm, 128).split() or (b"", b"0"))[1])
        finally:
            os.close(statm)
    return 0


def _private() -> int:
    """As a memory cgroup counts, less what can be reclaimed."""
    found = [status_memory(read(f"/proc/{pid}/status")) for pid in all_pids()]
    return sum(memory.anonymous for memory in found) + max((memory.shared for memory in found), default=0)


def _host_available(meminfo: str) -> int:
    lines = dict(line.split(":", 1) for line in meminfo.splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A pod that may be evicted, with what it uses and what it has requested, in bytes."""

    pod: Object
    used: int
    requested: int
    pids: list[int] = field(default_factory=list)

    @property
    def exceeds(self) -> bool:
        return self.used > self.requested

    @property
    def priority(self) -> int:
        return int(self.pod["spec"].get("priority") or 0)


def ranked(candidates: list[Candidate]) -> list[Candidate]:
    """In the kubelet's order: those above their request first, then by priority, then by how much they are above."""
    evictable = [candidate for candidate in candidates if candidate.pids and candidate.priority < CRITICAL]
    return sorted(evictable, key=lambda found: (not found.exceeds, found.priority, found.requested - found.used))


def helps(order: list[Candidate], free: int) -> bool:
    """Whether the pods are what the node lacks memory for, and not the node itself, in a job that is too small."""
    return sum(candidate.used for candidate in order) >= THRESHOLD - free


def message(candidate: Candidate, free: int) -> str:
    """As the kubelet's."""
    return (
        f"The node was low on resource: memory. Threshold quantity: {THRESHOLD // MIB}Mi, available: "
        f"{free // MIB}Mi. The pod was using {candidate.used // MIB}Mi, request is {candidate.requested // MIB}Mi."
    )


def evict_one(kubeconfig: Path, node: str, free: int) -> None:
    """Evict the first pod of the kubelet's order, and see to it that its status says so."""
    from pinnace.kube.client import Api  # noqa: PLC0415 - takes memory, and is needed here alone
    from pinnace.kube.events import WARNING, create_event  # noqa: PLC0415

    api = Api(kubeconfig, timeout=API_TIMEOUT)
    order = ranked(candidates(api.get(f"/api/v1/pods?fieldSelector=spec.nodeName={node}")["items"]))
    if not order or not helps(order, free):
        return
    first, text = order[0], message(order[0], free)
    path = _path(first.pod)
    api.strategic_patch(f"{path}/status", {"status": evicted_status(text)})
    for pid in first.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    about = {"component": "pinnace", "severity": WARNING, "reason": EVICTED, "message": text}
    create_event(api, first.pod, "Pod", **about)
    _finish(api, first.pod, text)


def _finish(api: Api, pod: Object, text: str) -> None:
    """The kubelet reports the end of the containers, and may put its own words, or none, in the place of these."""
    deadline = time.monotonic() + FINISH_LIMIT
    while time.monotonic() < deadline:
        time.sleep(FINISH_INTERVAL)
        found = api.get_or_none(_path(pod))
        if not found or found["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        if found["status"].get("reason") != EVICTED or not found["status"].get("message"):
            api.strategic_patch(f"{_path(pod)}/status", {"status": evicted_status(text)})
        elif not any("running" in status["state"] for status in found["status"].get("containerStatuses", ())):
            return


def evicted_status(text: str) -> Object:
    from pinnace.kube.conditions import condition  # noqa: PLC0415 - as above

    target = condition("DisruptionTarget", "True", "TerminationByKubelet", text)
    return {"phase": "Failed", "reason": EVICTED, "message": text, "conditions": [target]}


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def candidates(pods: list[Object]) -> list[Candidate]:
    """The pods that run here, with what their processes use."""
    processes, containers = read_processes(), read_containers()
    belongs = owners(processes, {container.pid for container in containers})
    of_pod: dict[tuple[str, str], list[int]] = {}
    used: dict[tuple[str, str], int] = {}
    for container in containers:
        pids = [pid for pid, first in belongs.items() if first == container.pid]
        name = (container.namespace, container.pod)
        of_pod.setdefault(name, []).extend(pids)
        used[name] = used.get(name, 0) + total([processes[pid] for pid in pids]).memory
    found = []
    for pod in pods:
        name = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        if pod["status"].get("phase") == "Running" and name in of_pod:
            found.append(Candidate(pod=pod, used=used[name], requested=requested(pod), pids=of_pod[name]))
    return found


def requested(pod: Object) -> int:
    """The memory that a pod requests."""
    from pinnace.kube.resources import MEMORY, needs, requests  # noqa: PLC0415 - as above

    return int(needs(pod, requests).get(MEMORY, Decimal(0)))
