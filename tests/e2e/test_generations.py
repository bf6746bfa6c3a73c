"""The core of all models on other generations of Slurm than that of the usual bed, with their own Debian and Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from e2e.bridge.conftest import Cluster, secret, slurmjob, token
from e2e.conftest import Kubectl, User, another_site, make_user
from e2e.left import assert_nothing_left
from e2e.podjobs import IMAGE, flags, job_of, log_of, manifest, status, wait_for_phase
from testbed.driver import gpu_uuid
from testbed.generations import DEFAULT, GENERATIONS
from testbed.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.bed, pytest.mark.timeout(900)]  # debootstrap, the first time

WITH_STALE_HOME = "24.11"  # hosts of that one remember what homes had in them, and have no file locks there
OTHERS = [known.slurm for known in GENERATIONS if known.slurm != DEFAULT]
MPI_IMAGE = "localhost/pinnace-test/openmpi:1"
MEET = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.barrier(); w.rank or print(w.size)"
# A server on one node with a Service in front, a client on the other, and a volume that both have.
SERVICE: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "together"},
     "spec": {"storageClassName": "shared", "accessModes": ["ReadWriteMany"],
              "resources": {"requests": {"storage": "1Mi"}}}},
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
     "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}},
]  # fmt: skip
SERVE = "mkdir -p /data/www; echo page > /data/www/index.html; exec httpd -f -p 8080 -h /data/www"
ASK = "until curl -s -m 3 http://web; do sleep 0.5; done; cat /data/www/index.html; hostname > /data/asked"


@pytest.fixture(scope="module", params=OTHERS)
def alice(request: pytest.FixtureRequest, real_store: Path) -> Iterator[User]:
    """alice of a bed of her own, with another Slurm."""
    plan = Plan(hosts=3, fast=True, slurm=request.param, stale_home=request.param == WITH_STALE_HOME)
    with another_site(request.param, plan, real_store) as bed:
        yield make_user(bed, "alice", "busybox", "nettools", "openmpi")


def pod(name: str, script: str, **more: Any) -> dict[str, Any]:
    """A pod with the volume at /data, apart from others of its kind."""
    body: dict[str, Any] = json.loads(manifest(name, ["sh", "-c", script], **more))
    spec = body["spec"]
    spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "together"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return body


def test_a_cluster_in_a_job_on_two_nodes_with_a_service_and_storage(alice: User) -> None:
    alice.pinnace("up", "-N", "2", "--name", "two", "--image", "busybox.tar", "--image", "nettools.tar")
    kubectl = Kubectl(user=alice, cluster="two")
    nodes = sorted(node["metadata"]["name"] for node in kubectl.json("get", "nodes")["items"])
    assert len(nodes) == 2
    web = pod("web", SERVE, metadata={"labels": {"app": "web"}}, nodeName=nodes[0])
    ask = pod("ask", ASK, image="localhost/pinnace-test/nettools:1", nodeName=nodes[1])
    kubectl.apply("\n---\n".join(json.dumps(body) for body in (*SERVICE, web, ask)))
    wait_for_phase(kubectl, "ask", "Succeeded", "Failed")
    assert log_of(kubectl, "ask") == "page\npage\n"
    assert kubectl("exec", "web", "--", "cat", "/data/asked") == "ask\n"
    assert "two" in alice.pinnace("list").stdout
    alice.pinnace("down", "two")
    assert_nothing_left(alice)


@pytest.fixture(scope="module")
def everything(alice: User) -> Iterator[Cluster]:
    """A cluster with pods as jobs, elastic nodes and a bridge."""
    bridge = ("--bridge", IMAGE, "--bridge-option=--slurmrestd=http://login:6820", "--bridge-option=--interval=0.5")
    images = ("--image", "busybox.tar", "--image", "openmpi.tar")
    alice.pinnace("up", "--name", "all", "-c", "1", "-w", "n1", "--elastic", "0:1", *bridge, *images)
    yield Cluster(alice=alice, kubectl=Kubectl(user=alice, cluster="all"))
    alice.pinnace("down", "all")
    assert_nothing_left(alice)


def as_job(text: str) -> dict[str, Any]:
    return {"annotations": flags(text)["annotations"] | {"pinnace.dev/run-as": "job"}}


def test_a_pod_as_a_job_has_ranks_on_two_nodes(everything: Cluster) -> None:
    """Open MPI's programs find each other by PMIx, which not every Slurm has, or by mpirun."""
    kubectl, user = everything.kubectl, everything.alice
    script = f"srun hostname | sort -u | wc -l; mpirun python3 -c '{MEET}'"
    if has_pmix := "pmix" in user.run("srun", "--mpi=list").stdout.split():
        script += f"; srun python3 -c '{MEET}'"
    metadata = as_job("--nodes=2 --ntasks-per-node=2")
    kubectl.apply(manifest("ranks", ["sh", "-c", script], image=MPI_IMAGE, metadata=metadata))
    phase = wait_for_phase(kubectl, "ranks", "Succeeded", "Failed")["phase"]
    assert (phase, log_of(kubectl, "ranks")) == ("Succeeded", "2\n4\n" + "4\n" * has_pmix)
    rows = json.loads(user.pinnace("doctor", "-o", "json", code=None).stdout)
    assert [row["state"] for row in rows if row["name"] == "ranks"] == ["ok" if has_pmix else "warning"]


def test_pods_have_their_gpus_typed_or_not(everything: Cluster) -> None:
    """n3's have a type; sites may have asked for GPUs in another way than we do."""
    kubectl = everything.kubectl
    for name, asked in (("untyped", "--nodelist=n2 --gres=gpu:1"), ("typed", "--nodelist=n3 --gpus-per-node=tesla:1")):
        metadata = as_job(asked)
        wanted = {"limits": {"nvidia.com/gpu": "1"}}
        kubectl.apply(
            manifest(name, ["sh", "-c", "nvidia-smi -L"], image=MPI_IMAGE, metadata=metadata, resources=wanted)
        )
    for name, host in (("untyped", "n2"), ("typed", "n3")):
        phase = wait_for_phase(kubectl, name, "Succeeded", "Failed")["phase"]
        assert phase == "Succeeded", log_of(kubectl, name)
        assert gpu_uuid(everything.alice.bed.plan.host(host), 0) in log_of(kubectl, name)


def test_a_cancelled_job_is_a_failed_pod_for_slurms_reason(everything: Cluster) -> None:
    kubectl = everything.kubectl
    kubectl.apply(manifest("doomed", ["sleep", "600"], metadata=as_job("--nodes=1")))
    wait_for_phase(kubectl, "doomed", "Running")
    everything.alice.run("scancel", job_of(kubectl, "doomed"))
    wait_for_phase(kubectl, "doomed", "Failed")
    everything.until("Slurm's reason", lambda: status(kubectl, "doomed").get("reason") == "SlurmCancelled")


def test_slurm_jobs_by_command_line_and_by_slurmrestd(everything: Cluster) -> None:
    user = everything.alice
    user.run("mkdir", "-p", "rest")
    everything.until("the kinds", everything.serves_slurmjobs)
    everything.apply(
        secret("hpc", url="http://login:6820", username="alice", token=token(user), directory="/home/alice/rest"),
        slurmjob("cli", "echo by $1", arguments=["command line"]),
        slurmjob("rest", "echo by $1; exit $SLURM_ARRAY_TASK_ID", arguments=["slurmrestd"], cluster={"secret": "hpc"},
                 options={"array": "0-1", "gres": "gpu:1", "signal": "USR1@60"}),
        slurmjob("refused", "true", cluster={"secret": "hpc"}, options={"partition": "nope"}),
    )  # fmt: skip
    assert everything.finished("cli")["state"] == "COMPLETED"
    assert everything.log("cli") == "by command line\n"
    ended = everything.finished("rest")
    assert (ended["state"], ended["exitCode"], ended["tasks"]["failed"]) == ("FAILED", 1, 1)
    assert ended["usage"]["tres"]
    said = sorted(path.read_text() for path in (user.home / "rest").glob("slurm-*.out"))
    assert said == ["by slurmrestd\n"] * 2
    assert "Invalid partition name" in str(everything.finished("refused")["conditions"])


def test_a_node_comes_when_a_pod_does_not_fit(everything: Cluster) -> None:
    everything.kubectl.apply(manifest("wide", ["echo", "came"], resources={"requests": {"cpu": "2"}}))
    wait_for_phase(everything.kubectl, "wide", "Succeeded", "Failed")
    assert log_of(everything.kubectl, "wide") == "came\n"
    assert everything.kubectl.json("get", "pod", "wide")["spec"]["nodeName"].startswith("job-")


def test_doctor_says_on_every_host_what_is_there(alice: User) -> None:
    rows = json.loads(alice.pinnace("doctor", "-N", "2", "-o", "json").stdout)
    assert len({row["host"] for row in rows}) == 3
    assert not [row for row in rows if row["state"] == "failed"]
    (answer,) = (row["text"] for row in rows if row["name"] == "slurm")
    assert alice.bed.plan.slurm in answer
