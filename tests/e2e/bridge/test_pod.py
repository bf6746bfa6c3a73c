"""`pinnace pod`: Slurm jobs that name an image run as pods of the user's cluster, where Slurm put them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.bridge.conftest import CLUSTER, IMAGE

if TYPE_CHECKING:
    from e2e.bridge.conftest import Cluster

pytestmark = pytest.mark.bed
SBATCH = ("sbatch", "--parsable", "--time=5", "--output=pod-%j.out")


def submit(cluster: Cluster, script: str, host: str = "n3", memory: str = "1500M") -> str:
    name = cluster.alice.write("pod.sh", f"#!/bin/bash\n{script}\n", 0o755)
    return cluster.alice.run(*SBATCH, f"--nodelist={host}", f"--mem={memory}", name).stdout.strip()


def ends(cluster: Cluster, number: str, code: int) -> str:
    """What a job has said at its end. `sbatch --wait` would look ever more rarely."""
    argv = ("squeue", "--states=all", "--noheader", "--jobs", number, "--Format=State,exit_code")

    def ended() -> list[str] | None:
        state, status = cluster.alice.run(*argv).stdout.split()
        return [status] if state in {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"} else None

    [status] = cluster.until(f"job {number}", ended, 240)
    assert status.partition(":")[0] == str(code), output(cluster, number)
    return output(cluster, number)


def output(cluster: Cluster, number: str) -> str:
    return str((cluster.alice.home / f"pod-{number}.out").read_text())


def nodes(cluster: Cluster) -> list[str]:
    return cluster.kubectl("get", "nodes", "-o", "name", "-l", "!wlm.sylabs.io/partition").split()


def test_it_ends_like_its_pod_where_slurm_put_it(cluster: Cluster) -> None:
    before = nodes(cluster)
    command = "sh -c 'echo job $SLURM_JOB_ID; hostname; touch /home/alice/was-here; exit 7'"
    number = submit(cluster, f"pinnace pod --name {CLUSTER} --image {IMAGE} -- {command}")
    # The host of the cluster's own node, which is one already.
    [host] = [name.removeprefix("node/") for name in before]
    kubeconfig = f".local/share/pinnace/clusters/{CLUSTER}/kubeconfig"
    script = f"pinnace pod --kubeconfig {kubeconfig} --image {IMAGE} -- sh -c 'id -u; echo $SLURM_JOB_NODELIST; exit 8'"
    there = submit(cluster, script, host=host, memory="300M")
    assert ends(cluster, number, 7) == f"job {number}\nslurm-job-{number}\n"
    assert (cluster.alice.home / "was-here").exists()
    assert ends(cluster, there, 8) == f"{cluster.alice.home.stat().st_uid}\n{host}\n"
    assert nodes(cluster) == before
    assert cluster.phase(f"slurm-job-{number}") == cluster.phase(f"slurm-job-{there}") == ""
    directory = cluster.alice.home / ".local/share/pinnace/clusters" / CLUSTER
    assert [file.name for file in (directory / "nodes").glob("[1-9]*")] == []  # its place is free again


def test_kube_slurms_words_and_scancel(cluster: Cluster) -> None:
    cluster.alice.write(
        "inside.sh",
        'echo "$1-$2 $KUBE_NAMESPACE"; ls /workspace $KUBE_DATA_VOLUME/pinnace; echo begun; exec sleep 600\n',
        0o755,
    )
    cluster.alice.run("mkdir", "-p", "work")
    cluster.alice.write("work/a-file", "")
    words = {"KUBE_IMAGE": IMAGE, "KUBE_SCRIPT": "/home/alice/inside.sh", "KUBE_SCRIPT_VARS": "one two",
             "KUBE_WORK_VOLUME": "/home/alice/work", "KUBE_DATA_VOLUME": "/opt/pinnace/bin",
             "KUBE_NAMESPACE": "slurm", "KUBE_INIT_TIMEOUT": "120"}  # fmt: skip
    exports = "\n".join(f"export {name}='{value}'" for name, value in words.items())
    number = submit(cluster, f"{exports}\nexec pinnace pod --name {CLUSTER}")
    cluster.until("it to begin", lambda: "begun" in output(cluster, number) if number_ran(cluster, number) else False)
    assert output(cluster, number) == "one-two slurm\n/opt/pinnace/bin/pinnace\n\n/workspace:\na-file\nbegun\n"
    pod = cluster.kubectl.json("get", "pod", "-n", "slurm", f"slurm-job-{number}")
    assert pod["spec"]["nodeName"] == f"n3-{number}"
    cluster.alice.run("scancel", number)
    cluster.until("the end of the pod", lambda: not cluster.kubectl("get", "pods", "-n", "slurm", "-o", "name"))
    cluster.until("the end of the node", lambda: f"node/n3-{number}" not in nodes(cluster))


def number_ran(cluster: Cluster, number: str) -> bool:
    return bool((cluster.alice.home / f"pod-{number}.out").exists())


def test_what_cannot_run_says_why(cluster: Cluster) -> None:
    number = submit(cluster, f"pinnace pod --name {CLUSTER} --image 'No/Such Image' -- true")
    without = submit(cluster, f"pinnace pod --name {CLUSTER} -- true", memory="300M")
    assert "cannot start" in ends(cluster, number, 1)
    assert cluster.phase(f"slurm-job-{number}") == ""
    assert "no image is named" in ends(cluster, without, 2)
    refused = cluster.alice.pinnace("pod", "--image", IMAGE, code=2)
    assert "for Slurm jobs" in refused.stderr
