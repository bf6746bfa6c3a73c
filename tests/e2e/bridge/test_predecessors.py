"""Manifests with the predecessors' fields: BridgeJob through slurmrestd with a real S3 server, WLM's kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.bridge import s3_server
from e2e.bridge.conftest import Cluster, Object, bridge_job, s3_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.bed


@pytest.fixture(scope="module")
def bridge(bridged: Cluster) -> Iterator[Cluster]:
    yield bridged
    bridged.kubectl("delete", "bridgejob,slurmjobs.wlm.sylabs.io,wlmjob", "--all", "--timeout=60s")


def status_of(cluster: Cluster, name: str, *words: str) -> Object:
    def found() -> Object | None:
        status: Object = cluster.get("bridgejob", name).get("status") or {}
        return status if status.get("jobstatus") in words else None

    status: Object = cluster.until(f"{name} to be {words}", found, 180)
    return status


def test_bridgejobs(bridge: Cluster) -> None:
    inline = {
        "scriptlocation": "inline",
        "jobscript": "#!/bin/bash\n#SBATCH --output=other.out\necho $PWD; echo e >&2\n",
    }
    bridge.alice.write("remote.sh", "#!/bin/bash\necho remote\nexit 2\n", 0o755)
    sleeping = {"scriptlocation": "inline", "jobscript": "#!/bin/bash\nsleep 600\n"}
    bridge.apply(
        bridge_job("inline", inline),
        bridge_job("remote", {"scriptlocation": "remote", "jobscript": "/home/alice/remote.sh"}),
        bridge_job("killed", sleeping),
        bridge_job("killed-by-map", sleeping),
        bridge_job("wrong", inline, jobproperties="no json"),
    )
    status = status_of(bridge, "inline", "DONE", "FAILED")
    assert status["jobstatus"] == "DONE"
    assert status["starttime"] <= status["completiontime"]
    assert "inline.out" in status["message"]
    home = bridge.alice.home / "bridge"
    assert (home / "inline" / "inline.out").read_text() == "/home/alice/bridge/inline\n"
    assert (home / "inline" / "inline.err").read_text() == "e\n"
    data = bridge.get("configmap", "inline-bridge-cm")["data"]
    assert (data["jobStatus"], data["status.jobStatus"]) == ("COMPLETED", "DONE")
    assert data["id"].isdigit()
    assert status_of(bridge, "remote", "FAILED", "DONE")["jobstatus"] == "FAILED"
    assert (home / "remote" / "remote.out").read_text() == "remote\n"
    status_of(bridge, "killed", "RUNNING")
    bridge.kubectl("patch", "bridgejob", "killed", "--type=merge", "-p", '{"spec":{"kill":true}}')
    status_of(bridge, "killed-by-map", "RUNNING")
    bridge.kubectl("patch", "cm", "killed-by-map-bridge-cm", "--type=merge", "-p", '{"data":{"kill":"true"}}')
    status_of(bridge, "killed", "KILLED")
    status_of(bridge, "killed-by-map", "KILLED")
    assert "JSON" in status_of(bridge, "wrong", "FAILED")["message"]


def test_s3(bridge: Cluster, s3: str) -> None:
    bridge.apply(s3_secret())
    storage = {"s3secret": "s3-secret", "endpoint": s3, "secure": False}
    script = b"#!/bin/bash\ncat extra.txt; echo more > more.txt\n"

    def call(code: str) -> str:
        """On the login host, where the server listens."""
        head = (
            "import io, sys\nfrom minio import Minio\n"
            f"s3 = Minio({s3!r}, access_key={s3_server.ACCESS!r}, secret_key={s3_server.SECRET!r}, "
            "secure=False)\n"
        )
        return bridge.alice.run("/opt/pinnace/bin/python3", "-c", head + code).stdout

    put = "s3.put_object('jobs', {!r}, io.BytesIO({!r}), {})\n"
    call(
        "s3.make_bucket('jobs')\n" + put.format("dir/job.sh", script, len(script)) + put.format("extra.txt", b"x\n", 2)
    )
    data = {"scriptlocation": "s3", "jobscript": "jobs:dir/job.sh", "additionaldata": "jobs:extra.txt"}
    bridge.apply(
        bridge_job("from-s3", data, s3storage=storage, s3upload={"bucket": "results", "files": "more.txt"}),
        bridge_job("not-in-s3", {**data, "jobscript": "jobs:absent"}, s3storage=storage),
    )
    assert status_of(bridge, "from-s3", "DONE", "FAILED")["jobstatus"] == "DONE"
    names = call("print([o.object_name for o in s3.list_objects('results', recursive=True)])")
    assert names.strip() == "['from-s3/from-s3.err', 'from-s3/from-s3.out', 'from-s3/more.txt']"
    assert call("print(s3.get_object('results', 'from-s3/from-s3.out').read())").strip() == "b'x\\n'"
    assert "NoSuchKey" in status_of(bridge, "not-in-s3", "FAILED")["message"]


def test_wlm(bridge: Cluster) -> None:
    volume = {"name": "data", "hostPath": {"path": "/home/alice/wlm-results", "type": "DirectoryOrCreate"}}
    head = {"apiVersion": "wlm.sylabs.io/v1alpha1"}
    bridge.apply(
        {**head, "kind": "SlurmJob", "metadata": {"name": "cow"}, "spec": {
            "batch": "#!/bin/sh\n#SBATCH --nodes=1 --mem=50M\n#SBATCH --output cow.out\nsrun hostname\n",
            "nodeSelector": {"wlm.sylabs.io/rack2": "", "wlm.sylabs.io/cuda": 10},
            "results": {"from": "cow.out", "mount": volume}}},
        {**head, "kind": "WlmJob", "metadata": {"name": "image"}, "spec": {
            "image": "localhost/pinnace-test/busybox:1", "options": {"cleanEnv": True},
            "resources": {"nodes": 1, "cpuPerNode": 2, "memPerNode": 3000, "wallTime": 600}}},
    )  # fmt: skip

    def status(kind: str, name: str) -> str:
        return str((bridge.get(kind, name).get("status") or {}).get("status"))

    bridge.until("cow", lambda: status("slurmjobs.wlm.sylabs.io", "cow") == "Succeeded")
    assert (bridge.alice.home / "wlm-results" / "cow-job" / "cow.out").read_text() == "n2\n"  # the one in rack2
    bridge.until("image", lambda: status("wlmjob", "image") in {"Succeeded", "Failed"}, 180)
    assert status("wlmjob", "image") == "Succeeded", bridge.log("image-wlm-job")


def test_a_job_out_of_time_has_ended(bridge: Cluster) -> None:
    """It was begun with the bridge: Slurm's shortest limit is a minute."""
    status = status_of(bridge, "late", "FAILED")
    assert bridge.get("configmap", "late-bridge-cm")["data"]["jobStatus"] == "TIMEOUT"
    assert "Timeout" in bridge.job("late-bridge")["status"]["conditions"][-1]["reason"], status
