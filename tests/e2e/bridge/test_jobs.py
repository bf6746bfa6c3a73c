"""SlurmJobs through Slurm's command line, from the object to the end of the job and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from e2e.bridge.conftest import conditions, jobs_of, names_of, slurmjob

if TYPE_CHECKING:
    from e2e.bridge.conftest import Cluster, Object

pytestmark = pytest.mark.bed


def test_a_job_with_everything(bridged: Cluster) -> None:
    bridged.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"},
         "data": {"GREETING": "hello", "job.sh": "#!/bin/bash\n#SBATCH --job-name=named\n"
                  "echo $GREETING $NAME $SECRET $ALL_it $1; cat in/*; echo result > out.txt; exit 3\n"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {"it": "s3cret"}},
    )  # fmt: skip
    job = slurmjob(
        "everything", "",
        scriptFrom={"configMap": {"name": "words", "key": "job.sh"}}, arguments=["an argument"],
        envFrom=[{"configMapRef": {"name": "words"}}, {"prefix": "ALL_", "secretRef": {"name": "hidden"}}],
        env=[{"name": "NAME", "value": "you"},
             {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "it"}}},
             {"name": "NOT", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "x", "optional": True}}}],
        inputs=[{"to": "in/1", "text": "staged\n"}, {"to": "in/2", "from": "~/there"},
                {"to": "in/3", "configMap": {"name": "words", "key": "GREETING"}},
                {"to": "in/4", "secret": {"name": "hidden", "key": "it"}}],
        results=[{"from": "out.txt", "directory": "~/results"}],
    )  # fmt: skip
    del job["spec"]["script"]
    bridged.alice.write("there", "was there\n")
    bridged.apply(job)
    status = bridged.finished("everything")
    assert (status["state"], status["exit"], status["exitCode"]) == ("FAILED", "3", 3)
    assert conditions(status)["Failed"]["reason"] == "Failed"
    assert conditions(status)["Collected"]["status"] == "True"
    assert status["usage"]["tres"]
    assert status["nodes"].startswith("n")
    assert bridged.log("everything") == "hello you s3cret s3cret an argument\nstaged\nwas there\nhellos3cret"
    assert bridged.phase("everything") == "Failed"  # the pod ends like the job
    assert (bridged.alice.home / "results" / "out.txt").read_text() == "result\n"
    assert names_of(bridged.alice, status["jobID"]) == ["named"]
    assert "pinnace.dev/slurm" not in bridged.job("everything")["metadata"].get("finalizers", [])
    shown = bridged.kubectl("get", "slj", "everything")
    assert shown.split()[:5] == ["NAME", "STATE", "JOBID", "NODES", "EXIT"]
    assert "s3cret" not in (bridged.alice.home / "bridge.log").read_text()


def test_an_array_and_what_depends_on_it(bridged: Cluster) -> None:
    bridged.apply(
        slurmjob("square", "echo $((SLURM_ARRAY_TASK_ID ** 2)) > part.$SLURM_ARRAY_TASK_ID", options={"array": "1-3"},
                 results=[{"from": "part.*", "directory": "~/parts"}]),
        slurmjob("sum", "cat ~/parts/part.* | paste -sd+", dependsOn=[{"name": "square"}]),
        slurmjob("sorry", "true", dependsOn=[{"name": "square", "type": "afternotok"}]),
        slurmjob("native", "true", dependsOn=[{"name": "sum"}]),
    )  # fmt: skip
    assert bridged.finished("square")["tasks"] == {"pending": 0, "running": 0, "succeeded": 3, "failed": 0}
    assert bridged.finished("sum")["state"] == "COMPLETED"
    assert bridged.log("sum") == "1+4+9\n"
    assert conditions(bridged.finished("sorry"))["Failed"]["reason"] == "DependencyFailed"
    assert conditions(bridged.finished("native"))["Complete"]["status"] == "True"


def test_logs_are_live(bridged: Cluster) -> None:
    bridged.apply(slurmjob("live", "echo begun; while [ ! -e go ]; do sleep 0.2; done; echo done"))
    bridged.until("the first line", lambda: bridged.kubectl("logs", "live", code=None) == "begun\n")
    directory = bridged.state("live", "RUNNING")["workingDirectory"]
    bridged.alice.run("touch", f"{directory}/go")
    bridged.finished("live")
    assert bridged.log("live") == "begun\ndone\n"


def collected(cluster: Cluster, name: str) -> str:
    """What is said of a job's results."""
    condition = conditions(cluster.job(name).get("status", {})).get("Collected", {})
    return str(condition.get("message", ""))


def test_pods_that_a_quota_forbids_stop_no_job(bridged: Cluster) -> None:
    volume: Object = {"emptyDir": {}}
    none = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    bridged.apply(none)
    try:
        bridged.until("the quota", lambda: "hard" in bridged.get("quota", "none").get("status", {}))
        bridged.apply(
            slurmjob("unheard", "true"),
            slurmjob("unkept", "true", results=[{"from": "*.out", "volume": volume, "path": "kept"}]),
        )
        status = bridged.finished("unheard")
        assert status["state"] == "COMPLETED"
        assert "exceeded quota" in conditions(status)["Logs"]["message"]
        bridged.until("the copy to wait", lambda: "exceeded quota" in collected(bridged, "unkept"))
    finally:
        bridged.kubectl("delete", "quota", "none")
    assert conditions(bridged.finished("unkept"))["Collected"]["status"] == "True"


def test_suspend_cancel_and_time_to_live(bridged: Cluster) -> None:
    loop = "i=0; while [ ! -e go ]; do i=$((i+1)); echo $i > count; sleep 0.1; done"
    bridged.apply(
        slurmjob("later", "true", suspend=True), slurmjob("held", loop), slurmjob("cancelled", "sleep 300"),
        slurmjob("queued", "true", options={"begin": "now+1hour"}),
    )  # fmt: skip

    def waits_for(reason: str) -> Object:
        def found() -> Object | None:
            status: Object = bridged.job("queued").get("status", {})
            return status if status.get("reason") == reason else None

        status: Object = bridged.until(reason, found)
        return status

    queued = waits_for("BeginTime")
    assert queued["expectedStart"] > queued["submitTime"]
    for suspended, reason in (("true", "JobHeldUser"), ("false", "BeginTime")):
        bridged.kubectl("patch", "slj", "queued", "--type=merge", "-p", f'{{"spec":{{"suspend":{suspended}}}}}')
        waits_for(reason)
    bridged.state("later", "SUSPENDED")
    assert "jobID" not in bridged.job("later")["status"]
    directory = bridged.alice.home / bridged.state("held", "RUNNING")["workingDirectory"].removeprefix("/home/alice/")
    bridged.until("the loop", (directory / "count").exists)
    bridged.kubectl("patch", "slj", "held", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    bridged.until("it to be stopped", lambda: bridged.job("held")["status"].get("held"))

    def stands() -> bool:
        before = (directory / "count").stat().st_mtime_ns
        bridged.alice.run("sleep", "1")
        return bool((directory / "count").stat().st_mtime_ns == before)

    bridged.until("its processes to stand", stands)
    bridged.kubectl("patch", "slj", "held", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    bridged.until("its processes to go on", lambda: not stands())
    (directory / "go").touch()
    assert bridged.finished("held")["state"] == "COMPLETED"

    bridged.state("cancelled", "RUNNING")
    for name in ("cancelled", "later", "queued"):
        bridged.kubectl("patch", "slj", name, "--type=merge", "-p", '{"spec":{"cancel":true}}')
        assert bridged.finished(name)["state"] == "CANCELLED"
    bridged.kubectl("patch", "slj", "later", "--type=merge", "-p", '{"spec":{"ttlSecondsAfterFinished":1}}')
    bridged.gone("slj", "later")


def test_retries_stop_at_the_first_success(bridged: Cluster) -> None:
    script = "echo x >> ~/tries; [ $(wc -l < ~/tries) -ge 2 ]"
    bridged.apply(
        slurmjob("again", script, retries=3), slurmjob("never", "exit 1", retries=1), slurmjob("shot", "kill -9 $$")
    )
    status = bridged.finished("shot")
    assert (status["state"], status["exit"], status["signal"]) == ("FAILED", "0:9", 9)
    status = bridged.finished("again")
    assert (status["state"], status["attempt"]) == ("COMPLETED", 2)
    assert (bridged.alice.home / "tries").read_text() == "x\nx\n"
    status = bridged.finished("never")
    assert (status["state"], status["attempt"]) == ("FAILED", 2)
    uid = bridged.job("never")["metadata"]["uid"]
    bridged.until("two jobs in accounting", lambda: len(jobs_of(bridged.alice, uid)) == 2)


def test_deletion_ends_the_job_at_every_stage(bridged: Cluster) -> None:
    waits = slurmjob("waits", "true", dependsOn=[{"name": "absent"}])
    pends = slurmjob("pends", "true", options={"begin": "now+1hour"})
    runs = slurmjob("runs", "sleep 600")
    array = slurmjob("many", "sleep 600", options={"array": "0-20%2"})
    absent = {"volume": {"persistentVolumeClaim": {"claimName": "absent"}}, "path": "x"}
    stages = slurmjob("stages", "true", inputs=[{"to": "in", **absent}])
    collects = slurmjob("collects", "echo > out", results=[{"from": "out", **absent}])
    bridged.apply(waits, pends, runs, array, stages, collects, slurmjob("ended", "true"))
    bridged.state("waits", "WAITING")
    bridged.state("pends", "PENDING")
    bridged.state("runs", "RUNNING")
    bridged.state("many", "RUNNING")
    bridged.state("stages", "STAGING")
    bridged.until("the copy", lambda: "is to copy" in collected(bridged, "collects"))
    bridged.finished("ended")
    names = ("waits", "stages", "pends", "runs", "many", "collects", "ended")
    uids = [bridged.job(name)["metadata"]["uid"] for name in names]
    bridged.kubectl("delete", "slj", *names, "--wait=false")
    for name in names:
        bridged.gone("slj", name)
    queue = bridged.alice.run("squeue", "--me", "--noheader", "--format=%k").stdout
    assert not any(uid in queue for uid in uids)
    assert not any(jobs_of(bridged.alice, uid) for uid in uids[:2])
    bridged.until("their pods to go", lambda: not re.search("stages|collects", bridged.kubectl("get", "pods")))


def test_volumes(bridged: Cluster) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
             "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}}  # fmt: skip
    volume = {"persistentVolumeClaim": {"claimName": "data"}}
    bridged.apply(
        claim,
        slurmjob("maker", "mkdir d; echo made > 'd/a file'", results=[{"from": "d", "volume": volume, "path": "kept"}]),
        slurmjob("taker", "cat 'in/d/a file'", inputs=[{"to": "in", "volume": volume, "path": "kept"}],
                 dependsOn=[{"name": "maker"}]),
    )  # fmt: skip
    assert bridged.finished("maker")["state"] == "COMPLETED"
    assert bridged.finished("taker")["state"] == "COMPLETED"
    assert bridged.log("taker") == "made\n"


def test_partitions_are_nodes(bridged: Cluster) -> None:
    def nodes() -> str:
        return bridged.kubectl("get", "nodes", "-l", "wlm.sylabs.io/partition", "-o", "name")

    bridged.until("the partitions", lambda: "node/slurm-main" in nodes())
    labels = bridged.get("node", "slurm-gpu")["metadata"]["labels"]
    assert labels["wlm.sylabs.io/nodes"] == "2"
    assert "wlm.sylabs.io/gpu" in labels
    bridged.kubectl("wait", "--for=condition=Ready", "node/slurm-main", "--timeout=60s")


def test_a_step_of_a_pipeline(bridged: Cluster) -> None:
    """Bridge's three steps in Python: set up, invoke, clean up."""
    code = """
import sys
from pathlib import Path
from pinnace.bridge.pipeline import SlurmStep
from pinnace.kube.access import Access
from pinnace.errors import SlurmError
access = Access.from_file(Path(sys.argv[1]))
states = []
with SlurmStep("step", {"script": "true", "options": {"memory": "50M"}}, access=access) as step:
    print(step.invoke(states.append)["exitCode"], states[-1])
with SlurmStep("bad-step", {"script": "exit 4", "options": {"memory": "50M"}}, access=access) as step:
    try:
        step.invoke()
    except SlurmError as error:
        print(error.message)
"""
    kubeconfig = f".local/share/pinnace/clusters/{bridged.kubectl.cluster}/kubeconfig"
    said = bridged.alice.run("/opt/pinnace/bin/python3", "-c", code, kubeconfig).stdout
    assert said == "0 COMPLETED\nbad-step: FAILED NonZeroExitCode\n"
    assert "step" not in bridged.kubectl("get", "slj", "-o", "name")
