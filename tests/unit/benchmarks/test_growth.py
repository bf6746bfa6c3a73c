"""What the benchmark of growth makes of what it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.growth import objects, results
from benchmarks.growth.kwok import LOCK, STAGES, kwok_argv
from benchmarks.growth.load import percentile, takes_pods
from benchmarks.growth.metrics import RequestClass, added, quantile, read_histograms
from benchmarks.growth.processes import component
from benchmarks.growth.results import Size

LINE = 'apiserver_request_sli_duration_seconds_bucket{{group="",resource="pods",verb="{}",le="{}"}} {}'


def metrics(*lines: tuple[str, str, str]) -> str:
    other = 'apiserver_request_total{code="200",verb="GET"} 9'
    return "\n".join([other, *(LINE.format(*line) for line in lines)])


def test_requests_that_last_as_long_as_their_client_wants_are_not_counted() -> None:
    text = metrics(("GET", "0.1", "7"), ("POST", "0.1", "1"), ("LIST", "0.1", "2"), ("WATCH", "0.1", "5"))
    assert read_histograms(text) == {RequestClass.SINGLE: {0.1: 8}, RequestClass.LIST: {0.1: 2}}


def test_only_what_was_added_counts() -> None:
    before = read_histograms(metrics(("GET", "0.1", "100"), ("GET", "1", "100"), ("GET", "+Inf", "100")))
    after = read_histograms(metrics(("GET", "0.1", "190"), ("GET", "1", "200"), ("GET", "+Inf", "2e+02")))
    found = added(before, after)[RequestClass.SINGLE]
    assert quantile(0.5, found) == pytest.approx(0.1 * 50 / 90)
    assert quantile(0.99, found) == pytest.approx(0.1 + 0.9 * 0.9)


def test_a_quantile_beyond_the_last_bound_is_that_bound_and_of_nothing_there_is_none() -> None:
    text = metrics(("GET", "60", "1"), ("GET", "+Inf", "10"))
    assert quantile(0.99, added(read_histograms(""), read_histograms(text))[RequestClass.SINGLE]) == 60
    assert quantile(0.99, read_histograms("")[RequestClass.LIST]) is None


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def size(**figures: float | None) -> Size:
    return Size(figures=figures, raw={"sample": {}})


def test_the_table_says_which_objectives_were_missed() -> None:
    found = [size(nodes=10, pod_start_p99=0.4), size(nodes=500, pod_start_p99=5.01, api_single_p99=1.2, etcd_mib=70)]
    text = results.text(found).splitlines()
    assert text[0].endswith(" objectives")
    assert text[1].endswith(" met")
    assert text[2].endswith(" pod_start_p99, api_single_p99")
    assert "scheduler" not in text[0], "nobody measured it"
    assert results.markdown(found).splitlines()[1].startswith("| ---: |")


def test_series_can_be_drawn() -> None:
    parts = {"simulated": [size(nodes=10, pods=100, pods_per_second=50), size(nodes=100, pods=1000, etcd_mib=60)]}
    document: dict[str, Any] = json.loads(json.dumps(results.as_json(parts, cpus=2)))
    drawn = document["parts"]["simulated"]["series"]["nodes"]
    assert drawn["pods_per_second"] == [[10, 50]]
    assert drawn["etcd_mib"] == [[100, 60]]
    assert drawn["pods"] == [[10, 100], [100, 1000]]


def test_simulated_pods_go_to_simulated_nodes_and_real_ones_do_not() -> None:
    node = objects.node(7)
    (taint,) = node["spec"]["taints"]
    label, _, value = objects.SIMULATED.partition("=")
    simulated, real = objects.pod_spec(""), objects.pod_spec("localhost/busybox:1")
    assert simulated["nodeSelector"] == {label: value} == {label: node["metadata"]["labels"][label]}
    assert simulated["tolerations"][0]["key"] == taint["key"] == objects.TAINT
    assert not {"nodeSelector", "tolerations"} & real.keys()
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert takes_pods(node | ready)
    node["spec"]["taints"].append({"key": "node.kubernetes.io/not-ready"})
    assert not takes_pods(node | ready)


def test_the_simulator_touches_no_other_nodes_and_does_not_listen() -> None:
    argv = kwok_argv("kwok", "kubeconfig", "stages.yaml")
    assert "--manage-all-nodes=false" in argv
    assert f"--manage-nodes-with-annotation-selector={objects.ANNOTATION}={objects.FAKE}" in argv
    assert "--node-port=0" in argv
    assert "sigs.k8s.io/kwok v0.8.0" in (LOCK / "go.mod").read_text()
    assert len(STAGES) == len(set(STAGES))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/opt/store/kube-apiserver", "--etcd-servers=x"], "kube-apiserver"),
        (["python3", "-I", "/x/pinnace/interpreter.py", "pinnace.node", "--cluster", "y"], "node"),
    ],
)
def test_processes_are_known_by_their_component(argv: list[str], name: str) -> None:
    assert component(argv) == name
