"""The bridge where it is meant to run: as a Deployment with its own image and few rights, and on a cluster's head."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.bridge.conftest import IMAGE, Cluster, conditions, s3_secret, secret, slurmjob, token
from e2e.conftest import PROJECT, Kubectl
from pinnace import __version__
from pinnace.bridge import deployment

if TYPE_CHECKING:
    from e2e.conftest import User


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
    options = ("-N", "1", "--mem", "4G", f"--bridge={IMAGE}", "--image", "busybox.tar")
    alice.pinnace("up", "--name", "headed", *options)
    try:
        cluster = Cluster(alice=alice, kubectl=Kubectl(user=alice, cluster="headed"))
        cluster.until("the kinds", cluster.serves_slurmjobs)
        said = alice.run("env", "SHELL=/home/alice/run.sh", "pinnace", "shell", "headed", timeout=400)
        assert said.stdout.endswith("1 4 9 16 ")
        assert said.stdout.count("COMPLETED") == 2
        # With the kind all its objects go, and their jobs with them; it may come back.
        cluster.apply(slurmjob("orphan", "sleep 600"))
        number = str(cluster.state("orphan", "RUNNING")["jobID"])
        cluster.kubectl("delete", "crd", "slurmjobs.pinnace.dev")
        assert number not in alice.run("squeue", "--noheader", "--format=%i").stdout.split()
        name = alice.write("crds.yaml", alice.pinnace("bridge", "--print-crds").stdout)
        cluster.kubectl("apply", "-f", name)
        cluster.until("the kind", cluster.serves_slurmjobs)
        cluster.apply(slurmjob("after", "true"))
        assert cluster.finished("after")["state"] == "COMPLETED"
    finally:
        alice.pinnace("down", "headed")


@pytest.mark.bed
def test_in_a_pod_with_few_rights(cluster: Cluster, s3: str) -> None:
    """It sees no files: the jobs bring and take them. A new version of it takes over from the old one."""
    shutil.copy(image_script().build(), cluster.alice.home / "bridge.tar")
    (cluster.alice.home / "bridge.tar").chmod(0o644)
    cluster.alice.pinnace("image", "load", "bridge.tar")
    cluster.kubectl("create", "namespace", "tenant")
    allowed = ["--slurmrestd=http://10.50.0.1:6820", f"--s3=http://{s3}"]
    manifest = deployment.manifest(f"localhost/pinnace/bridge:{__version__}", ["tenant"], allowed)
    name = cluster.alice.write("deployment.yaml", yaml.safe_dump_all(manifest))
    cluster.kubectl("apply", "-f", name)
    rollout = ("rollout", "status", "-n", deployment.NAME, f"deployment/{deployment.NAME}", "--timeout=120s")
    cluster.kubectl(*rollout)
    cluster.alice.run("mkdir", "deployed")
    tenant = replace(cluster, namespace="tenant")
    credentials = {"url": "http://10.50.0.1:6820", "username": "alice", "token": token(cluster.alice)}
    place = {"endpoint": s3, "secure": False, "secret": "s3-secret", "bucket": "deployed"}
    mine: Any = {"namespace": "tenant", "cluster": {"secret": "hpc"}}
    volume = {"to": "x", "volume": {"emptyDir": {}}, "path": "data"}
    tenant.apply(
        secret("hpc", "tenant", **credentials, directory="/home/alice/deployed"),
        s3_secret("tenant"),
        slurmjob("stores", "cat in.txt > out.txt", inputs=[{"to": "in.txt", "text": "brought"}],
                 results=[{"from": "out.txt", "s3": {**place, "prefix": "kept"}},
                          {"from": "*.txt", "directory": "~/deployed-results"}], **mine),
        slurmjob("fetches", "cat back.txt; while [ ! -e go ]; do sleep 0.2; done", dependsOn=[{"name": "stores"}],
                 inputs=[{"to": "back.txt", "s3": {**place, "key": "kept/out.txt"}}],
                 results=[{"from": "absent.txt", "s3": place}], **mine),
        slurmjob("no-volumes", "true", inputs=[volume], **mine),
        slurmjob("no-patterns", "true", results=[{"from": "*", "s3": place}], **mine),
    )  # fmt: skip
    status = tenant.finished("stores")
    assert conditions(status)["Collected"]["status"] == "True", status
    assert status["stdout"] in conditions(status)["Logs"]["message"]
    assert sorted(file.name for file in (cluster.alice.home / "deployed-results").iterdir()) == ["in.txt", "out.txt"]
    tenant.state("fetches", "RUNNING")
    cluster.kubectl("rollout", "restart", "-n", deployment.NAME, f"deployment/{deployment.NAME}")
    cluster.kubectl(*rollout)
    cluster.alice.run("touch", "deployed/go")
    status = tenant.finished("fetches")
    assert status["state"] == "COMPLETED"
    assert conditions(status)["Failed"]["reason"] == "ResultsMissing"
    assert "absent.txt: NoSuchKey" in conditions(status)["Collected"]["message"]
    output = cluster.alice.home / status["stdout"].removeprefix("/home/alice/")
    assert output.read_text().startswith("brought")
    for name, words in (("no-volumes", "volumes cannot be used"), ("no-patterns", "takes no patterns")):
        assert words in conditions(tenant.finished(name))["Failed"]["message"]
    cluster.kubectl("delete", "namespace", "tenant", deployment.NAME, "--wait=false")
