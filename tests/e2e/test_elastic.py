"""One cluster with everything: a standing node, pods that are jobs because they say so, and nodes that come and go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from e2e.conftest import Kubectl
from e2e.podjobs import IMAGE, LIMIT, manifest, wait_for_phase
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


@pytest.fixture(scope="module")
def mixed(bob: User) -> Iterator[Kubectl]:
    settings = bob.home / ".local/share/pinnace/pods.toml"
    bob.run("mkdir", "-p", ".local/share/pinnace")
    settings.write_text(SETTINGS)
    try:
        bob.pinnace("up", "--name", "mixed", "-c", "2", "--elastic", "0:2", "--image", "busybox.tar")
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
