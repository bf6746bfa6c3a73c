"""kube-slurm's variables as a pod."""

from __future__ import annotations

import pytest

from pinnace.cluster.joining import node_name
from pinnace.cluster.slurm_pod import pod_manifest, slurm_pod
from pinnace.errors import UsageError

JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "HOME": "/home/alice", "SECRET": "not for the pod"}


def test_kube_slurms_variables() -> None:
    variables = {
        "KUBE_IMAGE": "image:1", "KUBE_SCRIPT": "/home/alice/run.sh", "KUBE_SCRIPT_VARS": "a 'b c'",
        "KUBE_WORK_VOLUME": "/wide", "KUBE_DATA_VOLUME": "/data", "KUBE_NAMESPACE": "slurm", "KUBE_INIT_TIMEOUT": "30",
    }  # fmt: skip
    wanted = slurm_pod(JOB | variables)
    assert (wanted.name, wanted.namespace, wanted.timeout) == ("slurm-job-7", "slurm", 30)
    body = pod_manifest(wanted, "n1-7")
    [container] = body["spec"]["containers"]
    assert container["command"] == ["bash", "/home/alice/run.sh", "a", "b c"]
    assert container["workingDir"] == "/home/alice"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/home/alice", "/data", "/workspace"}
    assert body["spec"]["nodeName"] == "n1-7"
    assert "SECRET" not in {entry["name"] for entry in container["env"]}
    assert "securityContext" not in body["spec"]


def test_a_pod_gets_what_slurm_says_of_the_job_and_no_secret() -> None:
    secrets = {
        "SLURM_JWT": "t",
        "SLURM_SITE_PASSWORD": "t",
        "KUBE_TOKEN": "t",
        "SLURM_SPANK_X": "t",
        "SLURM_CONF": "/c",
    }
    told = {"SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]", "KUBE_IMAGE": "x"}
    assert slurm_pod(JOB | secrets | told).variables == told | {
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n1",
        "HOME": "/home/alice",
    }


def test_the_command_line_has_the_last_word() -> None:
    wanted = slurm_pod(JOB | {"KUBE_IMAGE": "other", "SLURM_PROCID": "3", "SLURM_GPUS": "2"}, image="mine",
                  command=("true",), namespace="here", as_user=(1, 2))  # fmt: skip
    assert (wanted.image, wanted.command, wanted.namespace, wanted.name) == ("mine", ("true",), "here", "slurm-job-7-3")
    body = pod_manifest(wanted, "n1")
    assert body["spec"]["securityContext"] == {"runAsUser": 1, "runAsGroup": 2}
    assert body["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 2}}


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(UsageError, match="no image"):
        slurm_pod(JOB)
    with pytest.raises(UsageError, match="KUBE_INIT_TIMEOUT"):
        slurm_pod(JOB | {"KUBE_IMAGE": "x", "KUBE_INIT_TIMEOUT": "soon"})


def test_every_node_has_a_name_of_its_own() -> None:
    assert node_name(JOB) == "n1-7"
    assert node_name(JOB | {"SLURM_PROCID": "2"}) == "n1-7-2"
