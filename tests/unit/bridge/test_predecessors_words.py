"""The predecessors' kinds as SlurmJobs, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinnace.bridge import bridgejob, wlm
from pinnace.bridge.slurmjob import Job
from pinnace.errors import UsageError
from pinnace.slurm.partitions import Partition

PROPERTIES = {
    "NodesNumber": "1", "Queue": "main", "Tasks": "2", "slurmJobName": "test", "currentWorkingDir": "/w",
    "envPath": "/bin", "envLibPath": "/lib", "ErrorFileName": "my.err", "OutputFileName": "my.out",
}  # fmt: skip
STORAGE = {"s3secret": "s3", "endpoint": "s3:9000", "secure": False}


def bridge_job(**spec: Any) -> dict[str, Any]:
    job = {"jobscript": "#!/bin/bash\n#SBATCH --output=other.out\nhostname\n", "scriptlocation": "inline"}
    common = {"resourceURL": "http://slurm:6820/slurm/v0.0.37", "resourcesecret": "slurm", "jobdata": job}
    return {"metadata": {"name": "mine", "namespace": "default"},
            "spec": {**common, "jobproperties": json.dumps(PROPERTIES), **spec}}  # fmt: skip


def child(**status: Any) -> Job:
    return Job({"metadata": {"name": "mine-bridge"}, "spec": {}, "status": status})


def test_a_bridgejob_is_a_slurmjob() -> None:
    spec = bridgejob.spec_of(bridge_job(updateinterval=5, kill=True))
    assert spec["cluster"] == {"secret": "slurm", "url": "http://slurm:6820/slurm/v0.0.37"}
    assert spec["options"] == {
        "nodes": "1", "partition": "main", "tasks": 2, "jobName": "test", "workingDirectory": "/w",
        "output": "my.out", "error": "my.err",
    }  # fmt: skip
    assert spec["env"] == [{"name": "PATH", "value": "/bin"}, {"name": "LD_LIBRARY_PATH", "value": "/lib"}]
    assert spec["script"].endswith("hostname\n")
    assert spec["cancel"]
    assert spec["updateIntervalSeconds"] == 5


def test_scripts_and_data_in_s3() -> None:
    data = {"jobscript": "bucket:dir/job.sh", "scriptlocation": "s3", "additionaldata": "b:a/x.dat, b:y.dat"}
    upload = {"bucket": "results", "files": "one.txt,two.txt"}
    spec = bridgejob.spec_of(bridge_job(jobdata=data, s3storage=STORAGE, s3upload=upload))
    place = {"endpoint": "s3:9000", "secure": False, "secret": "s3"}
    assert spec["scriptFrom"] == {"s3": {**place, "bucket": "bucket", "key": "dir/job.sh"}}
    assert [entry["to"] for entry in spec["inputs"]] == ["x.dat", "y.dat"]
    assert [entry["from"] for entry in spec["results"]] == ["my.out", "my.err", "one.txt", "two.txt"]
    assert spec["results"][0]["s3"] == {**place, "bucket": "results", "prefix": "mine"}


def test_a_script_on_the_cluster() -> None:
    data = {"jobscript": "/home/me/job.sh", "scriptlocation": "remote"}
    assert bridgejob.spec_of(bridge_job(jobdata=data))["scriptFrom"] == {"path": "/home/me/job.sh"}


def test_what_is_wrong_with_a_bridgejob_is_said() -> None:
    with pytest.raises(UsageError, match="no JSON"):
        bridgejob.spec_of(bridge_job(jobproperties="{"))
    with pytest.raises(UsageError, match="s3storage"):
        bridgejob.spec_of(bridge_job(s3upload={"bucket": "b"}))
    with pytest.raises(UsageError, match="bucket:object"):
        bridgejob.spec_of(bridge_job(s3storage=STORAGE, jobdata={"jobscript": "x", "scriptlocation": "s3"}))


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({}, "PENDING"),
        ({"state": "RUNNING", "startTime": "t"}, "RUNNING"),
        ({"state": "STOPPED", "startTime": "t"}, "SUSPENDED"),
        ({"state": "TIMEOUT", "completionTime": "t"}, "FAILED"),
        ({"state": "CANCELLED", "completionTime": "t"}, "KILLED"),
        ({"state": "COMPLETED", "completionTime": "t", "conditions": [{"type": "Complete", "status": "True"}]}, "DONE"),
    ],
)
def test_states_in_bridge_operators_words(status: dict[str, Any], word: str) -> None:
    assert bridgejob.job_status(child(**status)) == word


def test_the_config_map_has_parameters_and_progress() -> None:
    data = bridgejob.config_data(bridge_job(), child(jobID=12, state="RUNNING", startTime="t"))
    assert data["id"] == "12"
    assert data["jobStatus"] == "RUNNING"
    assert data["jobdata.scriptLocation"] == "inline"
    assert all(isinstance(value, str) for value in data.values())


def wlm_job(kind: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "cow", "namespace": "default"}, "spec": spec}


def test_wlms_slurmjob() -> None:
    mount = {"name": "data", "hostPath": {"path": "/results", "type": "DirectoryOrCreate"}}
    selector = {"wlm.sylabs.io/cuda": 10, "wlm.sylabs.io/partition": "gpu", "wlm.sylabs.io/containers": "apptainer"}
    body = wlm_job("SlurmJob", batch="#!/bin/sh\n", nodeSelector=selector, results={"from": "a", "mount": mount})
    spec = wlm.spec_of(body, {"cuda", "rack1"})
    assert spec["options"] == {"partition": "gpu", "constraint": "cuda"}
    assert spec["results"] == [{"from": "a", "volume": {"hostPath": mount["hostPath"]}, "path": "cow-job"}]
    assert wlm.child_name(body) == "cow-job"


def test_wlms_wlmjob_runs_its_image() -> None:
    resources = {"nodes": 2, "cpuPerNode": 4, "memPerNode": 512, "wallTime": 90}
    options = {"cleanEnv": True, "binds": ["/data:/data"], "app": "it's"}
    spec = wlm.spec_of(wlm_job("WlmJob", image="docker.io/library/x:1", resources=resources, options=options), set())
    assert spec["options"] == {"nodes": 2, "cpusPerTask": 4, "memory": 512, "time": "0:90"}
    assert """run --cleanenv '--app=it'"'"'s' --bind=/data:/data docker://docker.io/library/x:1""" in spec["script"]
    assert '"image": "docker.io/library/x:1"' in spec["script"]


def test_a_partition_as_a_node() -> None:
    partition = Partition(name="main_a", nodes=3, cpus=8, memory=8000, minutes=1440, features=("gpu", "rack1"))
    node = wlm.node(partition, now=1)
    labels = node["metadata"]["labels"]
    assert node["metadata"]["name"] == "slurm-main-a"
    assert (labels["wlm.sylabs.io/partition"], labels["wlm.sylabs.io/wall-time"]) == ("main_a", "86400")
    assert "wlm.sylabs.io/gpu" in labels
    assert node["status"]["capacity"]["cpu"] == "24"
