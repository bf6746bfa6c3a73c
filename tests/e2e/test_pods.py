"""Pods as Slurm jobs: what users see of them, on both sides."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import Kubectl
from e2e.podjobs import (
    LIMIT,
    events,
    flags,
    job_of,
    log_of,
    manifest,
    queue,
    status,
    timeline_of,
    wait_for_end,
    wait_for_no_job,
    wait_for_phase,
)
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import User

pytestmark = [pytest.mark.bed, pytest.mark.timeout(400)]

DEPLOYMENT = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: web
          image: localhost/pinnace-test/busybox:1
          command: [sh, -c, "trap 'exit 0' TERM; mkdir -p /www && hostname > /www/index.html; httpd -f -h /www & wait"]
          readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: here}
spec:
  storageClassName: scratch
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
"""
MANY = """
apiVersion: batch/v1
kind: Job
metadata: {name: many}
spec:
  completions: 8
  parallelism: 8
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "localhost/pinnace-test/busybox:1", command: [sleep, "1"]}]
"""


SHORT = """
apiVersion: batch/v1
kind: Job
metadata: {name: short, annotations: {pinnace.dev/flags: "--nodelist=n2 --cpus-per-task=6"}}
spec:
  completions: 6
  parallelism: 4
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "localhost/pinnace-test/busybox:1", command: [sh, -c, "hostname; sleep 1"]}]
"""


@pytest.fixture(scope="module")
def jobs(alice: User) -> Iterator[Kubectl]:
    """A cluster without worker nodes, whose pods are jobs."""
    images = [word for image in ("busybox", "nettools", "python") for word in ("--image", f"{image}.tar")]
    alice.pinnace("up", "--pods-as-jobs", "--name", "jobs", *images)
    yield Kubectl(user=alice, cluster="jobs")
    alice.pinnace("down", "jobs")
    comments = alice.run("squeue", "--me", "--noheader", "--format=%k").stdout
    assert "pinnace:jobs:" not in comments


def test_a_pod_is_a_job_and_its_log_and_exit_code_outlive_the_node(jobs: Kubectl) -> None:
    alice = jobs.user
    resources = {"requests": {"cpu": "2", "memory": "200Mi"}}
    jobs.apply(manifest("answer", ["sh", "-c", "echo one; echo two; exit 3"], resources=resources))
    job = job_of(jobs, "answer")
    name, cpus, memory, comment = queue(alice, job, "%j|%C|%m|%k").split("|")
    assert (name, cpus, memory) == ("answer", "2", "840M")
    assert comment.startswith("pinnace:jobs:")
    assert comment.endswith(":default/answer")
    ended = wait_for_phase(jobs, "answer", "Succeeded", "Failed")
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert wait_for_end(alice, job) == "FAILED"
    code = alice.run("sacct", "-X", "--noheader", "--parsable2", "--format=ExitCode", "-j", job).stdout.strip()
    assert code == "3:0"
    assert jobs.json("get", "pod", "answer")["spec"]["nodeName"] == f"job-{job}"
    assert log_of(jobs, "answer") == "one\ntwo\n"
    assert log_of(jobs, "answer", "--tail=1") == "two\n"
    steps = timeline_of(alice, "jobs", f"job-{job}")
    order = ["submission", "sbatch", "Slurm: queue", "load the agent", "kubelet", "default/answer/main: start"]
    assert [name for name in steps if name in order] == order
    jobs("delete", "pod", "answer")
    wait_until("the node to be forgotten", lambda: f"job-{job}" not in jobs("get", "nodes"), limit=LIMIT, interval=1)
    left = [path.name for path in (alice.home / ".local/share/pinnace/clusters/jobs").rglob(f"*job-{job}*")]
    assert left == []


def test_a_service_in_front_of_jobs_and_exec_into_one(jobs: Kubectl) -> None:
    jobs.apply(DEPLOYMENT)
    jobs("rollout", "status", "deployment/web", f"--timeout={LIMIT:.0f}s")
    pods = jobs.json("get", "pods", "-l", "app=web")["items"]
    name = pods[0]["metadata"]["name"]
    job = job_of(jobs, name)
    assert queue(jobs.user, job, "%k").endswith(":Deployment/web")
    assert jobs("exec", name, "--", "hostname").strip() == name
    client = ["curl", "-s", "--retry", "20", "--retry-all-errors", "--retry-delay", "1", "http://web.default.svc/"]
    jobs.apply(manifest("client", client, image="localhost/pinnace-test/nettools:1"))
    wait_for_phase(jobs, "client", "Succeeded")
    assert log_of(jobs, "client").strip() == name
    # scancel ends the pod, with the reason, and the Deployment makes another.
    jobs.user.run("scancel", job)
    ended = wait_for_phase(jobs, name, "Failed")
    wait_until("Slurm's reason", lambda: status(jobs, name)["reason"] == "SlurmCancelled", limit=LIMIT, interval=0.5)
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] in {0, 137, 143}
    assert wait_for_end(jobs.user, job) == f"CANCELLED by {jobs.user.uid}"
    jobs("rollout", "status", "deployment/web", f"--timeout={LIMIT:.0f}s")
    jobs("delete", "deployment/web", "service/web")
    jobs("delete", "pod", name, "client", "--ignore-not-found")


def test_a_job_in_its_hosts_network(jobs: Kubectl) -> None:
    """Its own name leads to the host's address."""
    script = "readlink /proc/self/ns/net; echo $PINNACE_HOST_ADDRESS; grep $(hostname) /etc/hosts"
    jobs.apply(manifest("outward", ["sh", "-c", script], runtimeClassName="host-network"))
    wait_for_phase(jobs, "outward", "Succeeded")
    job = job_of(jobs, "outward")
    network, address, *named = log_of(jobs, "outward").split()
    assert named == [address, "outward"]
    host = queue(jobs.user, job, "%N")
    assert network == jobs.user.run("readlink", "/proc/self/ns/net", on=host).stdout.strip()
    assert address == jobs.user.run("getent", "hosts", host).stdout.split()[0]
    jobs("delete", "pod", "outward")


def test_a_pod_that_waits_says_why_and_its_deletion_ends_the_job(jobs: Kubectl) -> None:
    jobs.apply(manifest("held", ["true"], metadata=flags("-H --time=5")))
    job = job_of(jobs, "held")

    def message() -> str:
        conditions = status(jobs, "held").get("conditions", [])
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")

    wait_until("the reason", lambda: "JobHeldUser" in message(), limit=LIMIT, interval=0.5)
    assert message().startswith(f"job {job} is pending in main")
    jobs("delete", "pod", "held")
    assert wait_for_end(jobs.user, job).startswith("CANCELLED")


def test_deleting_a_pod_that_runs_ends_its_job_after_the_grace_period(jobs: Kubectl) -> None:
    jobs.apply(manifest("sleeper", ["sleep", "600"]))
    wait_for_phase(jobs, "sleeper", "Running")
    job = job_of(jobs, "sleeper")
    jobs("delete", "pod", "sleeper")
    assert wait_for_end(jobs.user, job) == "COMPLETED"


@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        ("wraps", {"metadata": flags("--wrap=id")}, "--wrap is not for pods"),
        ("huge", {"resources": {"requests": {"cpu": "1000"}}}, "sbatch: error"),
        ("nobody", {"metadata": flags("--account=nobody")}, "nvalid account"),
        ("elsewhere", {"nodeSelector": {"disktype": "ssd"}}, "means nothing to Slurm"),
    ],
)
def test_what_cannot_be_is_said_on_the_pod_and_not_tried_again_and_again(
    jobs: Kubectl, name: str, spec: dict[str, Any], says: str
) -> None:
    jobs.apply(manifest(name, ["true"], **spec))
    wait_until("an event", lambda: says in events(jobs, name), limit=LIMIT, interval=0.5)
    assert status(jobs, name)["phase"] == "Pending"
    assert jobs("get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "name").count("event/") == 1
    assert "pinnace.dev/job" not in jobs.json("get", "pod", name)["metadata"]["annotations"]
    jobs("delete", "pod", name)


def test_a_pod_that_uses_more_memory_than_its_job_has(jobs: Kubectl) -> None:
    program = "import time; kept = bytearray(2 << 30); print(len(kept), flush=True); time.sleep(600)"
    image = "localhost/pinnace-test/python:1"
    resources = {"requests": {"memory": "100Mi"}}
    jobs.apply(manifest("greedy", ["python3", "-c", program], image=image, resources=resources))
    ended = wait_for_phase(jobs, "greedy", "Failed")
    assert ended["reason"] == "OOMKilled"
    assert ended["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
    assert "OUT_OF_MEMORY" in ended["message"]
    jobs("delete", "pod", "greedy")


def test_a_pod_over_its_own_limit_is_killed_though_its_job_has_room(jobs: Kubectl) -> None:
    program = "import time; kept = b'x' * (200 << 20); print(len(kept), flush=True); time.sleep(600)"
    resources = {"limits": {"memory": "100Mi"}}
    image = "localhost/pinnace-test/python:1"
    jobs.apply(manifest("modest", ["python3", "-c", program], image=image, resources=resources))
    ended = wait_for_phase(jobs, "modest", "Failed")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert wait_for_end(jobs.user, job_of(jobs, "modest")) == "FAILED", (
        "not OUT_OF_MEMORY: Slurm's limit was not reached"
    )
    jobs("delete", "pod", "modest")


def test_a_pod_whose_host_dies_has_failed(jobs: Kubectl) -> None:
    bed = jobs.user.bed
    jobs.apply(manifest("doomed", ["sh", "-c", "echo here; sleep 600"], nodeSelector={"pinnace.dev/host": "n3"}))
    try:
        wait_for_phase(jobs, "doomed", "Running")
        wait_until("its word", lambda: jobs("logs", "doomed", code=None) == "here\n", limit=LIMIT, interval=0.5)
        bed.kill_host("n3")
        ended = wait_for_phase(jobs, "doomed", "Failed")
        assert ended["reason"] == "SlurmNodeFail"
        assert {"type": "DisruptionTarget", "status": "True"}.items() <= next(
            condition for condition in ended["conditions"] if condition["type"] == "DisruptionTarget"
        ).items()
        wait_until("the log to be in the archive", lambda: jobs("logs", "doomed", code=None) == "here\n", limit=LIMIT)
    finally:
        bed.start_host("n3")
    wait_until("n3 to be back", lambda: bed.nodes().get("n3") in {"idle", "mixed"}, limit=60)
    jobs("delete", "pod", "doomed")


def test_a_pod_whose_job_is_preempted_has_failed_and_no_job_is_requeued(jobs: Kubectl) -> None:
    jobs.apply(manifest("victim", ["sleep", "600"], metadata=flags("-p spare -w n3 --cpus-per-task=6 --time=5")))
    wait_for_phase(jobs, "victim", "Running")
    job = job_of(jobs, "victim")
    refused = jobs.user.run("scontrol", "requeue", job, code=None)
    assert refused.returncode, "our jobs do not run a second time"
    assert status(jobs, "victim")["phase"] == "Running"
    jobs.user.run("srun", "-w", "n3", "--cpus-per-task=6", "--mem=100M", "true")
    wait_for_phase(jobs, "victim", "Failed")
    wait_until("Slurm's word", lambda: status(jobs, "victim")["reason"] == "SlurmPreempted", limit=LIMIT, interval=0.5)
    assert "DisruptionTarget" in {condition["type"] for condition in status(jobs, "victim")["conditions"]}
    assert wait_for_end(jobs.user, job) == "PREEMPTED"
    jobs("delete", "pod", "victim")


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=[pytest.mark.stress, pytest.mark.timeout(1200)])])
def test_the_provisioner_may_die_at_any_moment_and_slurmctld_too(jobs: Kubectl, kills: int) -> None:
    alice = jobs.user
    host = json.loads((alice.home / ".local/share/pinnace/clusters/jobs/nodes/0.json").read_text())["name"]

    def provisioner() -> list[str]:
        return alice.run("pgrep", "-f", "pinnace.podjobs.controller.*/jobs$", code=None, on=host).stdout.split()

    moments = random.Random(7)  # noqa: S311 - the same in every run
    jobs.apply(MANY)
    for number in range(kills):
        wait_until("a provisioner", lambda: bool(provisioner()), limit=LIMIT)
        time.sleep(moments.uniform(0.1, 3))
        alice.run("kill", "-KILL", *provisioner(), code=None, on=host)
        if number == 3:
            alice.bed.restart("slurmctld")
    jobs("wait", "--for=condition=complete", "job/many", "--timeout=240s", timeout=300)
    assert jobs.json("get", "job", "many")["status"]["succeeded"] == 8
    pods = jobs.json("get", "pods", "-l", "job-name=many")["items"]
    assert len(pods) == 8
    wait_for_no_job(jobs)
    assert {wait_for_end(alice, pod["spec"]["nodeName"].removeprefix("job-")) for pod in pods} == {"COMPLETED"}
    jobs("delete", "job", "many")


def test_short_pods_of_one_owner_follow_one_another_in_a_job(jobs: Kubectl) -> None:
    alice = jobs.user
    jobs.apply(SHORT)

    def comments() -> list[str]:
        rows = alice.run("squeue", "--me", "--noheader", "--states=all", "--format=%j %k").stdout.splitlines()
        return [row for row in rows if row.startswith("short-")]

    wait_until("a job that has had another pod", lambda: any(" after " in row for row in comments()), limit=LIMIT)
    jobs("wait", "--for=condition=complete", "job/short", "--timeout=240s", timeout=300)
    pods = jobs.json("get", "pods", "-l", "job-name=short")["items"]
    assert len(pods) == 6, "nothing was tried twice"
    used = {pod["spec"]["nodeName"] for pod in pods}
    assert len(used) < 6
    ends = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in pods]
    runs = sorted((ended["startedAt"], ended["finishedAt"]) for ended in ends)
    assert all(begin >= end for (_, end), (begin, _) in pairwise(runs)), "one after another: n2 has room for one job"
    wait_until("no job to be left", lambda: "short-" not in alice.run("squeue", "--me", "-o", "%j").stdout, limit=LIMIT)
    for pod in pods:
        assert log_of(jobs, pod["metadata"]["name"]) == f"{pod['metadata']['name']}\n"
    numbers = [node.removeprefix("job-") for node in used]
    for number in numbers:
        wait_for_end(alice, number)
    asked = ["sacct", "-X", "--noheader", "--parsable2", "--format=State,ExitCode", "-j", ",".join(numbers)]
    states = alice.run(*asked).stdout
    assert set(states.split()) == {"COMPLETED|0:0"}
    jobs("delete", "job", "short")


def test_a_volume_on_the_scratch_of_the_pods_own_node(jobs: Kubectl) -> None:
    jobs.apply(CLAIM)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "here"}}
    body = json.loads(manifest("writer", ["sh", "-c", "echo kept > /data/file && cat /data/file"], volumes=[volume]))
    body["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    jobs.apply(json.dumps(body))
    wait_for_phase(jobs, "writer", "Succeeded")
    assert log_of(jobs, "writer") == "kept\n"
    jobs("delete", "pod/writer", "pvc/here")


def test_pods_wait_while_the_user_has_as_many_jobs_as_the_site_allows(jobs: Kubectl) -> None:
    bed, user = jobs.user.bed, jobs.user.name
    wait_for_no_job(jobs)
    mine = len(jobs.user.run("squeue", "--me", "--noheader").stdout.splitlines())

    def allow(count: int) -> None:
        modify = ["sacctmgr", "--immediate", "modify", "user", user, "set", f"MaxSubmitJobs={count}"]
        bed.run(modify, user="root")

    allow(mine + 1)
    try:
        for name in ("first", "second"):
            jobs.apply(manifest(name, ["sleep", "5"]))
        wait_until(
            "Slurm's refusal",
            lambda: "SubmitJob" in events(jobs, "first") + events(jobs, "second"),
            limit=LIMIT,
            interval=0.5,
        )
        for name in ("first", "second"):
            wait_for_phase(jobs, name, "Succeeded")
    finally:
        allow(-1)
    jobs("delete", "pod", "first", "second")


def test_a_pod_at_its_time_limit_is_ended_in_order(jobs: Kubectl) -> None:
    jobs.apply(
        manifest("late", ["sh", "-c", "trap 'echo told; exit 7' TERM; sleep 600 & wait"], metadata=flags("-t 2"))
    )
    wait_for_phase(jobs, "late", "Failed")
    wait_until("Slurm's reason", lambda: status(jobs, "late")["reason"] == "SlurmTimeout", limit=LIMIT, interval=0.5)
    assert log_of(jobs, "late") == "told\n"
    assert status(jobs, "late")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    jobs("delete", "pod", "late")
