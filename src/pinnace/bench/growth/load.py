"""Brings a cluster to a size and measures it, as a client of its API. Runs wherever a kubeconfig works.

    python -m pinnace.bench.growth.load KUBECONFIG NODES PODS [--real IMAGE]

prints one JSON object, a ``LoadSample``. NODES and PODS are totals: what is there already stays.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.bench.growth import objects
from pinnace.bench.growth.metrics import added, quantile, read_histograms, read_process
from pinnace.kube import conditions
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.nodes import is_ready
from pinnace.kube.watch import Changed, Listed, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PROBE_PODS", "LoadSample", "ProbeResult", "measure", "percentile"]

LIMIT = 600.0  # seconds for each wait
CLIENTS = 4  # connections that create nodes
POLL_INTERVAL = 0.25  # seconds between looks at what is waited for
PROBE_RATE, PROBE_SECONDS = 10.0, 15.0  # pods a second, and for how long
PROBE_PODS = int(PROBE_RATE * PROBE_SECONDS)
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Seconds from the creation of a pod until it was seen to run, on a cluster of that size."""

    pods: int
    rate: float  # that was asked for, in pods a second
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class LoadSample:
    """A cluster at one size. ``nodes_seconds`` and ``pods_seconds`` are what it took to get there from the last one."""

    nodes: int
    pods: int
    new_nodes: int
    new_pods: int
    nodes_seconds: float
    pods_seconds: float
    pods_per_second: float
    probe: ProbeResult
    api_p99: dict[str, float | None]  # seconds, by class of requests
    api_requests: dict[str, int]
    list_pods_seconds: float  # of all pods, by this client
    apiserver_mib: float | None  # resident, when all was there
    apiserver_cpu_seconds: float | None  # since the last size

    @staticmethod
    def from_json(data: dict[str, Any]) -> LoadSample:
        return LoadSample(**data | {"probe": ProbeResult(**data["probe"])})


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by this share of all."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def wait_for(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {LIMIT:.0f} s")
        time.sleep(POLL_INTERVAL)


class Load:
    """One client. With an image pods are real; without, they are for simulated nodes, which it creates."""

    def __init__(self, kubeconfig: Path, image: str = "") -> None:
        self._kubeconfig, self._image = kubeconfig, image
        self._api = Api(kubeconfig, timeout=LIMIT)

    def bring_nodes(self, total: int) -> tuple[int, float]:
        """Create the simulated nodes that are missing, or wait for real ones. How many that were, and the seconds."""
        present = self._nodes()
        missing = [] if self._image else [objects.node(number) for number in range(len(present), total)]
        begun = time.monotonic()
        apis = [Api(self._kubeconfig, timeout=LIMIT) for _ in range(CLIENTS)]

        def create(number: int) -> None:
            for node in missing[number::CLIENTS]:
                apis[number].create("/api/v1/nodes", node)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(create, range(CLIENTS)))
        wait_for(f"{total} nodes", lambda: sum(map(takes_pods, self._nodes())) >= total)
        return len(missing), time.monotonic() - begun

    def _nodes(self) -> list[dict[str, Any]]:
        selector = "" if self._image else f"?labelSelector={objects.SIMULATED}"
        found: list[dict[str, Any]] = self._api.get(f"/api/v1/nodes{selector}")["items"]
        return found

    def bring_pods(self, total: int) -> tuple[int, float]:
        """Create the Deployments that are missing, and wait until all of their pods are ready."""
        self._api.create("/api/v1/namespaces", objects.namespace())
        present = sum(item["spec"]["replicas"] for item in self._deployments())
        number = len(self._deployments())
        begun = time.monotonic()
        left = total - present
        while left > 0:
            replicas = min(left, objects.REPLICAS)
            self._api.create(objects.DEPLOYMENTS, objects.deployment(number, replicas, self._image))
            number, left = number + 1, left - replicas

        def ready() -> bool:
            return sum(int(item["status"].get("readyReplicas", 0)) for item in self._deployments()) >= total

        wait_for(f"{total} pods", ready)
        return total - present, time.monotonic() - begun

    def _deployments(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api.get(objects.DEPLOYMENTS)["items"]
        return found

    def probe(self, rate: float, seconds: float) -> ProbeResult:
        """Create pods at a rate, and see by a watch when each of them runs."""
        created: dict[str, float] = {}
        running: dict[str, float] = {}
        listed = threading.Event()

        def note(change: Listed | Changed) -> None:
            listed.set()
            for pod in change.objects if isinstance(change, Listed) else [change.object]:
                if conditions.find(pod, "Ready").get("status") == "True":
                    running.setdefault(pod["metadata"]["name"], time.monotonic())

        path = f"{objects.PODS}?labelSelector={objects.PROBE}"
        watch(self._kubeconfig, "pods", note, path=path)
        listed.wait(LIMIT)
        begun = time.monotonic()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            name = f"probe-{begun:.0f}-{number}"
            created[name] = time.monotonic()
            self._api.create(objects.PODS, objects.probe(name, self._image))
        wait_for("the pods that are timed", lambda: created.keys() <= running.keys())
        taken = [running[name] - when for name, when in created.items()]
        self._api.request("DELETE", f"{path}&gracePeriodSeconds=0")
        return ProbeResult(
            pods=len(taken), rate=rate, p50=percentile(taken, 0.5), p99=percentile(taken, 0.99), max=max(taken)
        )

    def metrics(self) -> str:
        """The API server's own metrics, as text."""
        return str(self._api.get("/metrics"))

    def list_pods(self) -> float:
        begun = time.monotonic()
        self._api.get("/api/v1/pods")
        return time.monotonic() - begun


def takes_pods(node: dict[str, Any]) -> bool:
    """Whether the controller-manager has removed the taint of a node that was not ready."""
    own = {objects.TAINT}
    return is_ready(node) and {taint["key"] for taint in node["spec"].get("taints", ())} <= own


def measure(
    kubeconfig: Path, nodes: int, pods: int, *, image: str = "", rate: float = PROBE_RATE,
    seconds: float = PROBE_SECONDS,
) -> LoadSample:  # fmt: skip
    """Bring a cluster to a size, and measure on the way and when it is there."""
    load = Load(kubeconfig, image)
    before = load.metrics()
    new_nodes, nodes_seconds = load.bring_nodes(nodes)
    new_pods, pods_seconds = load.bring_pods(pods)
    probe = load.probe(rate, seconds)
    after = load.metrics()
    took = added(read_histograms(before), read_histograms(after))
    begun, now = read_process(before), read_process(after)
    return LoadSample(
        nodes=nodes,
        pods=pods,
        new_nodes=new_nodes,
        new_pods=new_pods,
        nodes_seconds=nodes_seconds,
        pods_seconds=pods_seconds,
        pods_per_second=new_pods / pods_seconds,
        probe=probe,
        api_p99={kind.value: quantile(0.99, buckets) for kind, buckets in took.items()},
        api_requests={kind.value: int(max(buckets.values(), default=0)) for kind, buckets in took.items()},
        list_pods_seconds=load.list_pods(),
        apiserver_mib=now.resident_bytes / MIB if now else None,
        apiserver_cpu_seconds=now.cpu_seconds - begun.cpu_seconds if begun and now else None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pinnace.bench.growth.load", description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("nodes", type=int)
    parser.add_argument("pods", type=int)
    parser.add_argument("--real", default="", metavar="IMAGE", help="pods of this image, on the nodes that there are")
    parser.add_argument("--rate", type=float, default=PROBE_RATE, help="pods a second that are timed")
    parser.add_argument("--seconds", type=float, default=PROBE_SECONDS, help="for how long")
    options = parser.parse_args()
    try:
        sample = measure(
            options.kubeconfig, options.nodes, options.pods, image=options.real, rate=options.rate,
            seconds=options.seconds,
        )  # fmt: skip
    except KeyboardInterrupt:
        return 130
    except API_FAILURES as error:  # of which a wait that took too long is one
        sys.stderr.write(f"{str(error) or type(error).__name__}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(sample)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
