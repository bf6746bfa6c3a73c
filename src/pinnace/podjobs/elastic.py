"""Elastic nodes: Slurm jobs that join as nodes when pods do not fit, and leave when nobody needs them."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import time
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pinnace.errors import SlurmError, UsageError
from pinnace.kube import conditions
from pinnace.kube.pods import is_terminal
from pinnace.kube.quantities import quantity
from pinnace.kube.resources import MEMORY, needs
from pinnace.network.addresses import MAX_PODS
from pinnace.podjobs import refusals
from pinnace.podjobs.reconciler import ELASTIC, is_ours, job_of_node
from pinnace.podjobs.settings import node_cpus, node_memory
from pinnace.podjobs.submission import (
    GRACE,
    MIB,
    claimed,
    extended_resources,
    fixed_options,
    gres_option,
    node_script,
    tag,
)
from pinnace.slurm.allowed_options import owner_options
from pinnace.slurm.options import argv, merge
from pinnace.slurm.times import parse_duration
from pinnace.spec import agent_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pinnace.podjobs.pod_api import PodApi
    from pinnace.podjobs.reconciler import World
    from pinnace.podjobs.settings import PodJobSettings
    from pinnace.slurm.commands import Slurm
    from pinnace.slurm.jobs import QueuedJob
    from pinnace.slurm.options import SbatchOptions
    from pinnace.spec import ClusterSpec

    Object = dict[str, Any]
    Amounts = dict[str, Decimal]

SETTLE = 12.0  # seconds after which the last submission of one of us that died is in the queue, or never will be
SUBMIT_INTERVAL = 3.0  # seconds between submissions of nodes for the same pods
REFUSED_PAUSE = 60.0  # seconds for which no node is submitted after one was refused for good
DEVICES_SETTLE = 10.0  # seconds after which a node has said which devices it has
DEVICE_OPTIONS = {"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"}

log = logging.getLogger("pinnace.podjobs")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What an elastic node offers."""

    cpus: int
    memory: int  # MiB
    pods: int = MAX_PODS
    devices: Amounts = field(default_factory=dict)  # by Kubernetes' names

    def amounts(self) -> Amounts:
        plain = {"cpu": Decimal(self.cpus), MEMORY: self.memory * MIB, "pods": Decimal(self.pods)}
        return plain | self.devices


def shape(options: SbatchOptions, largest: Shape, gres: Mapping[str, str]) -> Shape:
    """Of the nodes that these options ask for; without any, the largest that the partition has."""
    return Shape(
        cpus=node_cpus(options) or largest.cpus,
        memory=node_memory(options) or largest.memory,
        pods=largest.pods,
        devices=node_devices(options, gres),
    )


def node_devices(options: SbatchOptions, gres: Mapping[str, str]) -> Amounts:
    """The devices of a node with these options. Which maker's they are is not known before it runs.

    ``gres`` is the table of resources. What nobody asks Slurm for, as an RDMA adapter, every node may have.
    """
    asked: dict[str, Decimal] = {}
    for part in [*(options.get("gres") or "").split(","), *(f"gpu:{n}" for n in [options.get("gpus-per-node")] if n)]:
        name, _, rest = part.partition(":")
        kind, _, number = rest.rpartition(":")
        if not number.isdigit():
            kind, number = rest, "1"
        for key in {name, f"{name}:{kind}" if kind else name} if name else ():
            asked[key] = asked.get(key, Decimal(0)) + int(number)
    known = {resource: asked[slurm] for resource, slurm in gres.items() if slurm in asked}
    return known | {resource: Decimal(MAX_PODS) for resource, slurm in gres.items() if not slurm}


def is_stuck(pod: Object) -> bool:
    """Whether Kubernetes' own scheduler found no node for it."""
    if is_ours(pod) or pod["spec"].get("nodeName"):
        return False
    return bool(conditions.find(pod, "PodScheduled").get("reason") == "Unschedulable")


def _requests(container: Object) -> Amounts:
    resources = container.get("resources", {})
    return {
        name: quantity(str(text))
        for name, text in (resources.get("limits", {}) | resources.get("requests", {})).items()
    }


def demand(pod: Object) -> Amounts:
    """What the scheduler counts for a pod."""
    wanted = needs(pod, _requests)
    plain = {name: wanted.get(name, Decimal(0)) for name in ("cpu", MEMORY)} | {"pods": Decimal(1)}
    return plain | extended_resources(wanted)


def gres_of_nodes(demands: Iterable[Amounts], settings: PodJobSettings) -> dict[str, list[Amounts]]:
    """Pods by the --gres of nodes for them, where the user's options do not say what nodes have."""
    groups: dict[str, list[Amounts]] = {}
    for wanted in demands:
        with contextlib.suppress(UsageError):  # no node could ever have it, and the scheduler says so
            groups.setdefault(gres_option(wanted, settings), []).append(wanted)
    return groups


def pack(demands: Iterable[Amounts], offer: Amounts) -> int:
    """How many nodes of one shape hold these pods: first fit, the largest first. What fits on none is left out."""
    bins: list[Amounts] = []
    first: dict[tuple[tuple[str, Decimal], ...], int] = {}  # the first that may have room, by demand: bins only fill up
    for wanted in sorted(demands, key=lambda d: (d["cpu"], d[MEMORY]), reverse=True):
        if any(wanted[name] > offer.get(name, 0) for name in wanted):
            continue
        key = tuple(sorted(wanted.items()))
        number = first.get(key, 0)
        while number < len(bins) and any(wanted[name] > bins[number][name] for name in wanted):
            number += 1
        if number == len(bins):
            bins.append(dict(offer))
        first[key] = number
        for name, amount in wanted.items():
            bins[number][name] -= amount
    return len(bins)


def seconds_left(job: QueuedJob) -> float:
    """Until the time limit of a job; without one, for ever."""
    left = parse_duration(job.time_left)
    return math.inf if left is None else left


def busy_nodes(pods: Iterable[Object]) -> set[str]:
    """The nodes with a pod that would miss them."""
    return {
        str(pod["spec"]["nodeName"])
        for pod in pods
        if pod["spec"].get("nodeName")
        and not is_terminal(pod)
        and not any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", ()))
    }


@dataclass(kw_only=True)
class Elastic:
    """Keeps as many elastic nodes as are needed, between the user's bounds."""

    pod_api: Callable[[], PodApi]
    slurm: Slurm
    spec: ClusterSpec
    settings: PodJobSettings
    begun: bool = False
    idle: dict[str, float] = field(default_factory=dict)
    hold: float = 0.0
    largest: Shape | None = None
    seen: dict[str, float] = field(default_factory=dict)  # since when a node is there
    refused: dict[str, float] = field(default_factory=dict)  # until when no node with these devices is submitted

    @property
    def stamp(self) -> Path:
        """A file that is as old as the last submission."""
        return self.spec.directory / "elastic"

    @property
    def options(self) -> SbatchOptions:
        provisioning = self.spec.provisioning
        return owner_options([*(provisioning.options if provisioning else ()), *self.settings.elastic])

    def step(self, world: World, pods: Mapping[str, Object], nodes: Mapping[str, Object], now: float) -> None:
        provisioning = self.spec.provisioning
        if provisioning is None or world.jobs is None or provisioning.elastic == (0, 0):
            return
        if not self.begun:
            self.begun = True
            with contextlib.suppress(OSError):
                self.hold = now + max(0.0, SETTLE - (time.time() - self.stamp.stat().st_mtime))
        jobs = [
            job
            for job in world.jobs
            if (claimed(job.comment, self.spec.name) or "").startswith(ELASTIC) and job.state.is_alive
        ]
        ending = self._leave(jobs, pods, nodes, now)
        self._join(jobs, ending, pods, nodes, now)

    def _leave(
        self, jobs: list[QueuedJob], pods: Mapping[str, Object], nodes: Mapping[str, Object], now: float
    ) -> set[int]:
        """End what was idle for long enough, and empty what is about to be ended by Slurm. Gives the latter."""
        least = self.spec.provisioning.elastic[0] if self.spec.provisioning else 0
        by_node: dict[str, list[Object]] = {}
        for pod in pods.values():
            by_node.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        busy = busy_nodes(pods.values())
        alive = {job.id: job for job in jobs}
        ending: set[int] = set()
        joined = {
            node["metadata"]["name"]: node for node in nodes.values() if job_of_node(node["metadata"]["name"]) in alive
        }
        for name, node in joined.items():
            number = job_of_node(name) or 0
            late = seconds_left(alive[number]) < self.settings.drain_seconds + GRACE
            if late:
                ending.add(number)
                self._drain(node, by_node.get(name, []))
            if name in busy:
                self.idle.pop(name, None)
                continue
            idle = now - self.idle.setdefault(name, now) > self.settings.idle_seconds
            if late or (idle and len(alive) - len(ending) > least):
                log.info("node %s leaves: %s", name, "its time is nearly over" if late else "it was idle")
                self._cordon(node)
                self.slurm.cancel(number, ours=lambda text: claimed(text, self.spec.name) is not None)
                ending.add(number)
                del self.idle[name]
        self.idle = {name: since for name, since in self.idle.items() if name in joined}
        return ending

    def _cordon(self, node: Object) -> None:
        if not node["spec"].get("unschedulable"):
            self.pod_api().patch_node(node["metadata"]["name"], {"spec": {"unschedulable": True}})

    def _drain(self, node: Object, pods: list[Object]) -> None:
        """Before a node's time is over: no more pods, and those that are there go elsewhere in order."""
        self._cordon(node)
        for pod in pods:
            if not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") == "Running":
                self.pod_api().evict(pod)

    def _join(
        self,
        jobs: list[QueuedJob],
        ending: set[int],
        pods: Mapping[str, Object],
        nodes: Mapping[str, Object],
        now: float,
    ) -> None:
        provisioning = self.spec.provisioning
        if provisioning is None or now < self.hold:
            return
        least, most = provisioning.elastic
        if self.largest is None:
            self.largest = self._largest()
        demands = [demand(pod) for pod in pods.values() if is_stuck(pod)]
        wanted = self._wanted(demands, self.largest, now)
        here = self._offering(
            {name for demanded in demands for name in extended_resources(demanded)}, nodes.values(), now
        )
        coming = sum(1 for job in jobs if f"job-{job.id}" not in here)
        more = max(len(wanted) - coming, least - (len(jobs) - len(ending)))
        for number in range(min(more, most - len(jobs))):
            self._submit(now, wanted[number] if number < len(wanted) else {})

    def _offering(self, devices: set[str], nodes: Iterable[Object], now: float) -> set[str]:
        """The nodes that offer all that they will. A kubelet tells of devices up to a few seconds after it is there."""
        offers = {node["metadata"]["name"]: node["status"].get("allocatable", {}).keys() for node in nodes}
        self.seen = {name: self.seen.get(name, now) for name in offers}
        return {
            name
            for name, offer in offers.items()
            if not devices or devices & offer or now > self.seen[name] + DEVICES_SETTLE
        }

    def _wanted(self, demands: list[Amounts], largest: Shape, now: float) -> list[SbatchOptions]:
        """The nodes for pods that wait: options that each has beside those of all, devices that its pods ask for.

        What no host has, Slurm refuses; then pods that ask for no devices need not wait.
        """
        said = bool(self.options.keys() & DEVICE_OPTIONS)
        groups = {"": demands} if said else gres_of_nodes(demands, self.settings)
        nodes: list[SbatchOptions] = []
        for gres, group in groups.items():
            if gres and now < self.refused.get(gres, 0.0):
                continue
            more: SbatchOptions = {"gres": gres} if gres else {}
            offer = shape(self.options | more, largest, self.settings.gres).amounts()
            nodes += [more] * pack(group, offer)
        return sorted(nodes, key=lambda options: not options)  # who waits for devices waits longest

    def _largest(self) -> Shape:
        largest = self.slurm.largest_node(self.options.get("partition"))
        return Shape(cpus=largest["cpus"], memory=largest["memory"], pods=self.spec.ranges.max_pods)

    def _submit(self, now: float, more: SbatchOptions) -> None:
        claim = f"{ELASTIC}{secrets.token_hex(6)}"
        self.hold = now + SUBMIT_INTERVAL
        self.stamp.touch()
        given = self.options
        asked = shape(given, self.largest or Shape(cpus=1, memory=1024), self.settings.gres)
        options = merge(
            {"cpus-per-task": str(asked.cpus), "mem": f"{asked.memory}M", "job-name": f"pinnace-{self.spec.name}-node"},
            {name: value for name, value in given.items() if name not in {"nodes", "ntasks"}},
            more,
        )
        agent = agent_argv(self.spec.directory, "--join", "--label=pinnace.dev/elastic=true")
        args = [
            *argv(options),
            *fixed_options(self.spec.directory),
            f"--comment={tag(self.spec.name, claim)}:node",
        ]
        try:
            job = self.slurm.sbatch(node_script(agent), args)
        except SlurmError as error:
            refusal = refusals.refusal_of(error)
            if refusal is refusals.Refusal.PERMANENT and more.get("gres"):
                self.refused[str(more["gres"])] = now + REFUSED_PAUSE
                log.warning("no node with --gres=%s: %s", more["gres"], error)
                return
            self.hold = now + (
                refusals.SUBMIT_LIMIT_PAUSE if refusal is not refusals.Refusal.PERMANENT else REFUSED_PAUSE
            )
            raise
        log.info("submitted job %s for one more node", job)
