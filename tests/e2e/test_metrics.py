"""metrics-server: what `kubectl top` says is true, and autoscaling goes by it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

LIMIT = 120  # seconds; two measurements, ten seconds apart, on a busy machine
LOAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: load}
spec:
  replicas: 1
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: busy
          image: localhost/pinnace-test/busybox:1
          command: [sh, -c, "while :; do i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; sleep 0.1; done"]
          resources: {requests: {cpu: 50m}}
        - name: idle
          image: localhost/pinnace-test/busybox:1
          command: [sh, -c, "x=$(head -c 40000000 /dev/zero | tr '\\\\0' x); sleep 3600; echo $x"]
          resources: {requests: {cpu: 50m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: load}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: load}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
"""


@pytest.fixture(scope="module")
def load(cluster: Kubectl) -> Iterator[str]:
    """A pod with one container that uses a quarter of a CPU and one that only holds 40 MB."""
    cluster.apply(LOAD)
    cluster("rollout", "status", "deployment/load", "--timeout=120s")
    yield "load"
    cluster("delete", "deployment/load", "hpa/load", "--wait=false")


def top(cluster: Kubectl, *words: str) -> list[list[str]]:
    """The lines of ``kubectl top``; none while nothing was measured."""
    return [line.split() for line in cluster("top", *words, "--no-headers", code=None).splitlines()]


def amount(text: str) -> int:
    """Of 123m or 45Mi, the number."""
    match = re.fullmatch(r"(\d+)(m|Mi)", text)
    assert match, text
    return int(match[1])


def test_nodes_are_measured(cluster: Kubectl) -> None:
    wait_until("both nodes to be measured", lambda: len(top(cluster, "nodes")) == 2, limit=LIMIT)
    for name, cpu, _, memory, *_ in top(cluster, "nodes"):
        assert name in {"n1", "n2"}
        assert amount(cpu) > 0
        assert 50 < amount(memory) < 4096, "the node's own processes"


def test_every_container_has_its_own_measure(cluster: Kubectl, load: str) -> None:
    rows: dict[str, tuple[int, int]] = {}

    def measured() -> bool:
        lines = top(cluster, "pods", "-l", f"app={load}", "--containers")
        rows.update({container: (amount(cpu), amount(memory)) for _, container, cpu, memory in lines})
        return "busy" in rows and rows["busy"][0] > 5 * max(rows["idle"][0], 2) and rows["idle"][1] >= 35

    wait_until("the pod to be measured", measured, limit=LIMIT)
    assert rows["busy"][1] < 20, rows
    assert rows["idle"][1] < 200, rows


def test_a_deployment_is_scaled_by_its_load(cluster: Kubectl, load: str) -> None:
    def scaled() -> bool:
        replicas: int = cluster.json("get", "deployment", load)["spec"]["replicas"]
        return replicas == 2

    wait_until("the autoscaler to add a pod", scaled, limit=LIMIT)


def test_the_api_knows_metrics_server_by_its_certificate(cluster: Kubectl) -> None:
    cluster("wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=120s")
    spec = cluster.json("get", "apiservice", "v1beta1.metrics.k8s.io")["spec"]
    assert spec["caBundle"]
    assert not spec.get("insecureSkipTLSVerify")


def test_metrics_server_may_do_no_more_than_it_needs(cluster: Kubectl) -> None:
    for verb, what, code in (("list", "pods", 0), ("list", "secrets", 1), ("create", "pods", 1), ("get", "nodes", 0)):
        cluster("auth", "can-i", verb, what, "-A", "--as=pinnace:metrics-server", code=code)
