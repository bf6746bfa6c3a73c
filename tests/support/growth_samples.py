"""Samples of a cluster that grows, as the tests need them."""

from __future__ import annotations

from pinnace.bench.growth.load import LoadSample, ProbeResult
from pinnace.bench.growth.results import Size, figures

__all__ = ["measured", "sample"]


def sample(nodes: int, pods: int, *, pod_start_p99: float = 0.16) -> LoadSample:
    """A sample of a size, to which 9/10 of the pods were added."""
    new = pods * 9 // 10
    return LoadSample(
        nodes=nodes, pods=pods, new_nodes=nodes, new_pods=new, nodes_seconds=2.9, pods_seconds=new / 30,
        pods_per_second=30.0,
        probe=ProbeResult(pods=150, rate=10.0, p50=0.03, p99=pod_start_p99, max=2 * pod_start_p99),
        api_p99={"single": 0.2, "list": 0.35}, api_requests={"single": 2000, "list": 40}, list_pods_seconds=0.1,
        apiserver_mib=363.0, apiserver_cpu_seconds=0.02 * (new + 150),
    )  # fmt: skip


def measured(*samples: LoadSample) -> tuple[Size, ...]:
    return tuple(Size(figures=figures(one), raw={}) for one in samples)
