"""The timeline of a cluster that runs: both nodes' steps, in an order that can be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from e2e.namespaces import namespace, once

if TYPE_CHECKING:
    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NODES = ("n1", "n2")
NODE_STEPS = ("agent", "namespaces", "mounts", "network", "kubelet", "register node", "node is ready")


def timeline(cluster: Kubectl, *options: str) -> Any:
    return json.loads(cluster.user.pinnace("timeline", "shared", "-o", "json", *options).stdout)


def test_both_nodes_have_a_timeline_in_order(cluster: Kubectl) -> None:
    data = timeline(cluster)
    begins = {(step["where"], step["name"]): step["begin"] for step in reversed(data["steps"])}  # the first of each
    for node in NODES:
        order = [begins[node, name] for name in NODE_STEPS]
        assert order == sorted(order), f"{node}: {dict(zip(NODE_STEPS, order, strict=True))}"
        assert begins[node, "API answers"] <= begins[node, "kubelet"] < begins[node, "register node"]
        assert begins[node, "containerd"] < begins[node, "kubelet"]
    assert begins["login", "command"] == 0.0
    assert begins["login", "submission"] < begins["login", "Slurm: queue"] < begins["n1", "agent"]
    assert begins["n1", "etcd"] < begins["n1", "API answers"]
    assert begins["n1", "node is ready"] < data["nodes_ready"]
    assert 0 < data["slurm"] < data["nodes_ready"]
    backward = [step for step in data["steps"] if step["end"] is not None and step["end"] < step["begin"]]
    assert backward == []


def test_it_is_shown_and_saved(cluster: Kubectl) -> None:
    shown = cluster.user.pinnace("timeline", "shared").stdout
    assert "all nodes ready after" in shown
    assert "batch_sched_delay" in shown
    directory = cluster.user.home / ".local/share/pinnace/clusters/shared/timeline"
    assert json.loads((directory / "timeline.json").read_text())["cluster"] == "shared"
    texts = {element.text for element in ET.fromstring((directory / "timeline.svg").read_text()).iter()}  # noqa: S314
    assert {"n1", "n2", "network"} <= texts
    assert all(path.stat().st_mode & 0o077 == 0 for path in (directory / "nodes").iterdir())


def test_a_pods_steps_come_from_the_components_own_logs(cluster: Kubectl) -> None:
    with namespace(cluster, "timeline") as here:
        here.create(once("timed", "true", nodeName="n2"))
        here("wait", "pod/timed", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
        data = timeline(cluster, "--node", "n2")
        own = {step["name"]: step for step in data["steps"] if step["name"].startswith("timeline/timed")}
        order = ["kubelet sees it", "sandbox", "create", "start"]
        found = [next(step for name, step in own.items() if name.endswith(f": {kind}")) for kind in order]
        assert [step["begin"] for step in found] == sorted(step["begin"] for step in found)
        assert {step["where"] for step in data["steps"]} == {"n2"}


def test_a_node_that_is_not_there(cluster: Kubectl) -> None:
    answer = cluster.user.pinnace("timeline", "shared", "--node", "n9", code=2)
    assert "nothing was recorded by a node 'n9'" in answer.stderr
