"""One cluster with everything: a standing node, pods that are jobs because they say so, and nodes that come and go."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl
from e2e.podjobs import IMAGE, LIMIT, manifest, wait_for_phase
from pinnace.network.addresses import parse
from pinnace.network.native.profile import ANNOTATION
from pinnace.spec.records import NodeConnections
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import User

pytestmark = [pytest.mark.bed, pytest.mark.timeout(600)]

SETTINGS = """
idle_seconds = 3
drain_seconds = 60
elastic = ["--cpus-per-task=2", "--mem=1500M", "--time=3"]
"""

NETWORK = "100.64.0.0/14"
HIGH = 300  # an index that no node had when there were at most 255


@pytest.fixture(scope="module")
def mixed(bob: User) -> Iterator[Kubectl]:
    settings = bob.home / ".local/share/pinnace/pods.toml"
    bob.run("mkdir", "-p", ".local/share/pinnace")
    settings.write_text(SETTINGS)
    try:
        network = ["--network", NETWORK]
        up = bob.pinnace("up", "--name", "mixed", "-c", "2", "--elastic", "0:2", "--image", "busybox.tar", *network)
        assert f"{NETWORK} has addresses for up to 512 node(s) with 250 pods each" in up.stderr
        yield Kubectl(user=bob, cluster="mixed")
        bob.pinnace("down", "mixed")
        assert "pinnace:mixed" not in bob.run("squeue", "--me", "--noheader", "--format=%k").stdout
    finally:
        settings.unlink()


def node_of(mixed: Kubectl, name: str) -> str:
    return str(mixed.json("get", "pod", name)["spec"].get("nodeName", ""))


def test_the_nearest_word_says_whether_a_pod_is_a_job(mixed: Kubectl) -> None:
    mixed("create", "namespace", "hpc")
    mixed("label", "namespace", "hpc", "pinnace.dev/run-as=job")
    said = {"annotations": {"pinnace.dev/run-as": "job"}}
    other = {"namespace": "hpc", "annotations": {"pinnace.dev/run-as": "node"}}
    mixed.apply(manifest("plain", ["true"]))
    mixed.apply(manifest("said", ["true"], metadata=said))
    mixed.apply(manifest("class", ["true"], runtimeClassName="slurm-job"))
    mixed("wait", "--for=create", "serviceaccount/default", "-n", "hpc", "--timeout=60s")
    mixed.apply(manifest("there", ["true"], metadata={"namespace": "hpc"}))
    mixed.apply(manifest("not-there", ["true"], metadata=other))
    for name in ("plain", "said", "class"):
        wait_for_phase(mixed, name, "Succeeded")
    for name in ("there", "not-there"):
        mixed("wait", "-n", "hpc", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", f"--timeout={LIMIT:.0f}s")
    (head,) = {node_of(mixed, "plain")}
    assert not head.startswith("job-")
    assert node_of(mixed, "said").startswith("job-")
    assert node_of(mixed, "class").startswith("job-")
    pods = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in mixed.json("get", "pods", "-n", "hpc")["items"]}
    assert pods["there"].startswith("job-")
    assert pods["not-there"] == head
    mixed("delete", "pods", "--all")
    mixed("delete", "namespace", "hpc")


def test_nodes_come_when_pods_do_not_fit_and_leave_when_idle(mixed: Kubectl) -> None:
    template = {
        "metadata": {"labels": {"app": "wide"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "command": ["sleep", "600"],
                    "resources": {"requests": {"cpu": "1500m"}},
                }
            ],
        },
    }
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "wide"}}, "template": template}
    mixed.apply(json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "wide"}, "spec": spec}))
    mixed("rollout", "status", "deployment/wide", f"--timeout={LIMIT:.0f}s")

    def on_jobs() -> set[str]:
        """The elastic nodes on which pods run."""
        pods = mixed.json("get", "pods", "-l", "app=wide")["items"]
        nodes = {pod["spec"].get("nodeName", "") for pod in pods if pod["status"]["phase"] == "Running"}
        return {name for name in nodes if name.startswith("job-")}

    first = on_jobs()
    assert len(first) == 2
    # Their time is three minutes. Two before the end they are emptied and leave, and others take their place.
    wait_until("the next two", lambda: len(on_jobs() - first) == 2, limit=3 * LIMIT, interval=2)
    queue = mixed.user.run("squeue", "--me", "--noheader", "--states=R", "--format=%i").stdout.split()
    assert not {name.removeprefix("job-") for name in first} & set(queue)
    mixed("scale", "deployment/wide", "--replicas=0")
    wait_until("the nodes to leave", lambda: "job-" not in mixed("get", "nodes"), limit=LIMIT, interval=1)
    mixed("delete", "deployment", "wide")


def test_a_node_with_a_high_index_is_a_node_as_any_other(mixed: Kubectl) -> None:
    """Its pods and those of the first node reach each other, as native sockets and over the general path."""
    directory = mixed.user.home / ".local/share/pinnace/clusters/mixed"
    about = json.loads((directory / "cluster.json").read_text())
    about["provisioning"]["standing"] = HIGH  # nodes that join take the indices from here on
    (directory / "cluster.json").write_text(json.dumps(about))
    general = {ANNOTATION: "false"}
    serve = ["sh", "-c", "hostname > index.html; exec httpd -f -p 8080"]
    mixed.apply(manifest("low", serve))
    mixed.apply(manifest("low-general", serve, metadata={"annotations": general}))
    mixed.apply(manifest("high", serve, metadata={"annotations": {"pinnace.dev/run-as": "job"}}))
    addresses = {name: wait_for_phase(mixed, name, "Running")["podIP"] for name in ("low", "low-general", "high")}
    ranges = parse(NETWORK, nodes=3, occupied=[])
    assert {name: ranges.owner(int(IPv4Address(address))) for name, address in addresses.items()} == {
        "low": 0, "low-general": 0, "high": HIGH,
    }  # fmt: skip
    for client, server in (("low", "high"), ("high", "low"), ("low-general", "high")):
        ask = f"printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | nc -w 10 {addresses[server]} 8080"
        assert mixed("exec", client, "--", "sh", "-c", ask).split()[-1] == server
        mixed("exec", client, "--", "ping", "-c", "1", "-s", "20000", "-W", "10", addresses[server])

    def native(index: int) -> bool:
        found = NodeConnections.read(directory / "nodes", index)
        return bool(found and found.pods and found.accepted)

    wait_until("native connections in both directions", lambda: native(0) and native(HIGH), limit=30, interval=1)
    mixed("delete", "pods", "--all")
