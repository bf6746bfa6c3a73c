"""The bridge where it is meant to run: as a Deployment with its own image and few rights, and on a cluster's head."""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bridge.conftest import IMAGE, Cluster, Direct, secret, slurmjob, token
from over.conftest import PROJECT
from pinnace import __version__
from pinnace.bridge import deployment

if TYPE_CHECKING:
    from over.conftest import User


def image_script() -> Any:
    spec = importlib.util.spec_from_file_location("image", PROJECT / "deploy" / "image.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_for_some_namespaces_it_has_rights_only_there() -> None:
    bodies = deployment.manifest("image:1", ["a", "b"])
    kinds = [body["kind"] for body in bodies]
    assert "ClusterRole" not in kinds
    assert [body["metadata"]["namespace"] for body in bodies if body["kind"] == "Role"] == ["a", "b"]
    everywhere = next(body for body in deployment.manifest("image:1") if body["kind"] == "ClusterRole")
    verbs = {verb for rule in everywhere["rules"] if "secrets" in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {"get"}
    assert "pods" not in str(everywhere)
    assert "leases" not in str(everywhere)
    leases = [body for body in deployment.manifest("image:1") if body["kind"] == "Role"]
    assert [body["metadata"]["namespace"] for body in leases] == ["kube-system"]


@pytest.mark.bed
def test_on_the_head_with_the_workflow_example(alice: User) -> None:
    for name in ("prepare.yaml", "compute.yaml", "collect.yaml", "run.sh"):
        shutil.copy(PROJECT / "examples" / "workflow" / name, alice.home / name)
    alice.pinnace("up", "-N", "1", "--name", "headed", "--mem", "4G", f"--bridge={IMAGE}", "--image", "busybox.tar")
    try:
        cluster = Cluster(alice=alice, kubectl=Direct(user=alice, cluster="headed"))
        cluster.until("the kinds", cluster.serves_slurmjobs)
        said = alice.run("env", "SHELL=/home/alice/run.sh", "pinnace", "shell", "headed", timeout=400)
        assert said.stdout.endswith("1 4 9 16 ")
        assert said.stdout.count("COMPLETED") == 2
    finally:
        alice.pinnace("down", "headed")


@pytest.mark.bed
def test_in_a_pod_with_few_rights(cluster: Cluster) -> None:
    shutil.copy(image_script().build(), cluster.alice.home / "bridge.tar")
    (cluster.alice.home / "bridge.tar").chmod(0o644)
    cluster.alice.pinnace("image", "load", "bridge.tar")
    cluster.kubectl("create", "namespace", "tenant")
    manifest = deployment.manifest(f"localhost/pinnace/bridge:{__version__}", ["tenant"])
    name = cluster.alice.write("deployment.yaml", yaml.safe_dump_all(manifest))
    cluster.kubectl("apply", "-f", name)
    cluster.kubectl("rollout", "status", "-n", deployment.NAME, f"deployment/{deployment.NAME}", "--timeout=120s")
    credentials = {"url": "http://10.50.0.1:6820", "username": "alice", "token": token(cluster.alice)}
    cluster.apply(
        secret("hpc", "tenant", **credentials, directory="/home/alice"),
        slurmjob("deployed", "echo deployed > deployed.txt", namespace="tenant", cluster={"secret": "hpc"}),
    )

    def state() -> Any:
        return cluster.kubectl.json("get", "slj", "-n", "tenant", "deployed").get("status", {}).get("completionTime")

    cluster.until("the job", state)
    log = cluster.kubectl("logs", "-n", deployment.NAME, f"deployment/{deployment.NAME}")
    assert (cluster.alice.home / "deployed.txt").exists(), log
    cluster.kubectl("delete", "namespace", "tenant", deployment.NAME)
