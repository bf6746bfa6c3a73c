"""What is made of the API server's metrics and of its objects, and how kwok is told what to simulate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinnace.bench.growth import objects
from pinnace.bench.growth.kwok import CONFIGURATION, kwok_argv
from pinnace.bench.growth.load import LoadSample, percentile, takes_pods
from pinnace.bench.growth.metrics import RequestClass, added, quantile, read_histograms, read_process
from support.growth_samples import sample

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


def test_the_api_server_tells_what_it_takes() -> None:
    text = (
        "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 12.5\n"
        "process_resident_memory_bytes 2.62144e+08\nprocess_resident_memory_bytes_other 7\n"
    )
    found = read_process(text)
    assert found
    assert (found.resident_bytes, found.cpu_seconds) == (250 * 2**20, 12.5)
    assert read_process("process_cpu_seconds_total 12.5\n") is None


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def test_a_sample_is_the_same_after_it_was_printed() -> None:
    assert LoadSample.from_json(json.loads(json.dumps(asdict(sample(10, 100))))) == sample(10, 100)


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
    argv = kwok_argv("kwok", "kubeconfig", "kwok.yaml")
    assert "--manage-all-nodes=false" in argv
    assert f"--manage-nodes-with-annotation-selector={objects.ANNOTATION}={objects.FAKE}" in argv
    assert "--node-port=0" in argv


def test_the_simulator_is_told_how_nodes_and_pods_change() -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(Path(CONFIGURATION).read_text()))
    options, *stages = documents
    assert options["kind"] == "KwokConfiguration"
    assert all(value == 64 for value in options["options"].values())
    kinds = [stage["spec"]["resourceRef"]["kind"] for stage in stages]
    assert kinds == ["Node", "Node", "Pod", "Pod"]
    for stage in stages:
        template = stage["spec"]["next"].get("statusTemplate", "")
        assert template.count("{{") == template.count("}}")
        assert template.count("{{ range") == template.count("{{ end }}")
