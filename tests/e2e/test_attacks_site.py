"""Attacks by way of the site: Slurm's queue, shared directories, environments, images that others made.

bob is the second user of every host; a tenant is somebody who may create pods in alice's cluster and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import Kubectl
from e2e.podjobs import IMAGE, LIMIT, events, job_of, log_of, manifest, queue, status, wait_for_phase
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.conftest import User

pytestmark = [pytest.mark.bed, pytest.mark.timeout(400)]

NAME = "attacked"
TOKEN = "not-for-pods"  # noqa: S105 - the secret that attacks are after
HOSTS = ("n1", "n2", "n3")
REST = "None\x1fN/A\x1f\x1fmain\x1f1:00\x1f1:00\x1f0:00\x1f1"


@pytest.fixture(scope="module")
def jobs(alice: User) -> Iterator[Kubectl]:
    """alice's cluster, whose pods are jobs; she has a secret in her environment."""
    up = ["pinnace", "up", "--pods-as-jobs", "--name", NAME, "--image", "busybox.tar"]
    alice.run("env", f"SITE_TOKEN={TOKEN}", *up)
    yield Kubectl(user=alice, cluster=NAME)
    alice.pinnace("down", NAME)


@contextlib.contextmanager
def job(user: User, *options: str, command: str = "sleep 600") -> Iterator[str]:
    """A job of a user's that has nothing to do with pinnace. Gives its number."""
    argv = ["sbatch", "--parsable", "--mem=50M", "--output=/dev/null", *options, f"--wrap={command}"]
    number = user.run(*argv).stdout.strip()
    try:
        yield number
    finally:
        user.run("scancel", number, code=None)


def lives(user: User, number: str) -> bool:
    return queue(user, number, "%T") in {"PENDING", "RUNNING"}


def refusal(jobs: Kubectl, pod: str) -> str:
    """Why a pod is not submitted; empty while nobody has said so."""
    conditions = status(jobs, pod).get("conditions", ())
    return next((entry["message"] for entry in conditions if entry.get("reason") == "SlurmRefused"), "")


def forged_name(victim: str, end: str = "\n") -> str:
    """A name that makes three rows of one, in the format that pinnace used to ask for; the second is of another job.

    That one waits, and is for a pod of the cluster that does not exist: such jobs are cancelled.
    """
    own = f"x\x1fPENDING\x1f{REST}\x1fnothing"
    forged = f"{victim}\x1fx\x1fPENDING\x1f{REST}\x1fpinnace:{NAME}:no-such-pod:x"
    return f"{own}{end}{forged}{end}1\x1fx"


@contextlib.contextmanager
def pods(jobs: Kubectl, **bodies: str) -> Iterator[None]:
    """Pods that are deleted whatever comes of them."""
    try:
        for body in bodies.values():
            jobs.apply(body)
        yield
    finally:
        jobs("delete", "pod", *bodies, "--wait=false", code=None)


def test_a_tenant_cannot_forge_the_row_of_another_job(jobs: Kubectl) -> None:
    """As a tenant: a job's name with line ends and a whole row in it, to have a job of alice's cancelled."""
    with job(jobs.user, "--begin=now+1hour") as victim:
        annotations = {"slurmjob.slinky.slurm.net/job-name": forged_name(victim), "pinnace.dev/flags": "--hold"}
        with pods(jobs, forger=manifest("forger", ["true"], metadata={"annotations": annotations})):

            def decided() -> bool:
                return bool(refusal(jobs, "forger")) or not lives(jobs.user, victim)

            wait_until("the pod to be refused", decided, limit=60, interval=0.5)
            assert lives(jobs.user, victim)
            assert "cannot be printed" in refusal(jobs, "forger")


def test_no_name_of_a_job_in_the_queue_is_taken_for_a_row(jobs: Kubectl) -> None:
    """As somebody whose text becomes the name of a job of alice's: the parser itself, on what squeue really prints."""
    ends = ("\n", "\x0b", "\x1c", "\x85", "\u2028")
    with contextlib.ExitStack() as stack:
        victims = [stack.enter_context(job(jobs.user, "--begin=now+1hour")) for _ in ends]
        for victim, end in zip(victims, ends, strict=True):
            stack.enter_context(job(jobs.user, "--begin=now+1hour", f"--job-name={forged_name(victim, end)}"))
        stack.enter_context(pods(jobs, bystander=manifest("bystander", ["sleep", "3"])))
        wait_for_phase(jobs, "bystander", "Succeeded")  # meanwhile the queue is looked at every second
        assert [end for victim, end in zip(victims, ends, strict=True) if not lives(jobs.user, victim)] == []


def test_a_number_that_a_tenant_has_made_up_does_not_end_the_provisioner(jobs: Kubectl) -> None:
    """As a tenant: annotations that only the provisioner writes, and reads as numbers."""
    made_up = {"pinnace.dev/submitted-at": "never", "pinnace.dev/job": "7;8"}
    with pods(jobs, liar=manifest("liar", ["true"], metadata={"annotations": made_up})):
        time.sleep(4)  # it has been looked at, before the next comes
        with pods(jobs, honest=manifest("honest", ["true"])):
            wait_until(
                "an honest pod", lambda: status(jobs, "honest")["phase"] == "Succeeded", limit=LIMIT, interval=0.5
            )


def stale_cluster(user: User, name: str, run: dict[str, Any]) -> Path:
    """What is left of a cluster that ended long ago, or came back with a backup."""
    directory = user.home / ".local/share/pinnace/clusters" / name
    directory.mkdir(parents=True, mode=0o700)
    (directory / "job.json").write_text(json.dumps({"nodes": 1, "local": False} | run))
    for path in (directory, directory / "job.json"):
        shutil.chown(path, user.uid, user.uid)
    return directory


@pytest.mark.usefixtures("jobs")
def test_a_number_of_a_job_that_was_given_again_is_not_cancelled(alice: User) -> None:
    with job(alice) as victim:
        directory = stale_cluster(alice, "stale", {"job": int(victim)})
        alice.pinnace("down", "stale")
        assert lives(alice, victim)
        assert not directory.exists()


@pytest.mark.usefixtures("jobs")
def test_a_number_of_a_process_that_was_given_again_is_not_killed(alice: User) -> None:
    script = "sleep 600 >/dev/null 2>&1 & echo $!"
    victim = alice.run("sh", "-c", script).stdout.strip()
    try:
        stale_cluster(alice, "stale", {"pid": int(victim), "host": "login"})
        alice.pinnace("down", "stale")
        assert alice.run("kill", "-0", victim, code=None).returncode == 0
    finally:
        alice.run("kill", victim, code=None)


FILE_READERS = {
    "nodelist": {"annotations": {"pinnace.dev/flags": "--nodelist=/home/alice/secret"}},
    "exclude": {"annotations": {"pinnace.dev/flags": "-x ../alice/secret"}},
    "nodefile": {"annotations": {"slurm-job.vk.io/flags": "-F /home/alice/secret"}},
    "constraint": {"annotations": {"slurmjob.slinky.slurm.net/constraints": "/home/alice/secret"}},
}


def test_a_tenants_pod_names_no_file_that_sbatch_opens_as_alice(jobs: Kubectl) -> None:
    """As a tenant: sbatch, which runs as alice, reads lists of hosts from files, and says what it found there."""
    jobs.user.write("secret", f"{TOKEN}\n", mode=0o600)
    shutil.chown(jobs.user.home / "secret", jobs.user.uid)
    with pods(jobs, **{name: manifest(name, ["true"], metadata=about) for name, about in FILE_READERS.items()}):
        for name in FILE_READERS:
            wait_until(f"{name} to be refused", lambda name=name: bool(refusal(jobs, name)), limit=60, interval=0.5)  # type: ignore[misc]
            said = refusal(jobs, name) + events(jobs, name)
            assert TOKEN not in said, name
            assert "would open files of the cluster's owner" in said, name


def test_marks_of_strangers_in_tmp_do_not_delay_a_pod(jobs: Kubectl, bob: User) -> None:
    """As bob, on every host: directories that look like nodes of alice's that are starting, their locks held."""
    script = f"""umask 0
for i in 1 2 3 4; do
    d=/tmp/pinnace-{jobs.user.uid}-fake$i; mkdir -p $d; touch -d 2001-01-01 $d/starting
    flock $d/.lock sleep 300 &
done; wait"""
    with contextlib.ExitStack() as stack:
        for host in HOSTS:
            stack.enter_context(job(bob, "-w", host, command=script))
        for host in HOSTS:
            place = bob.bed.directories.host(host) / "tmp" / f"pinnace-{jobs.user.uid}-fake4" / ".lock"
            wait_until("bob's marks", place.exists, limit=30)
        begin = time.monotonic()
        jobs.apply(manifest("punctual", ["true"]))
        wait_for_phase(jobs, "punctual", "Succeeded")
        assert time.monotonic() - begin < 60, "sixty seconds is what a node waits for others"
        jobs("delete", "pod", "punctual", "--wait=false")
    for host in HOSTS:
        bob.run("sh", "-c", f"rm -r /tmp/pinnace-{jobs.user.uid}-fake*", on=host)


def test_a_privileged_pod_finds_no_secret_in_the_nodes_processes(jobs: Kubectl) -> None:
    """As a tenant with all rights over the node: the environments of kubelet, containerd and the first process."""
    look = "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | sort -u | grep -v ^LOOK"
    jobs.apply(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "spy"},
                "spec": {
                    "restartPolicy": "Never",
                    "hostPID": True,
                    "containers": [
                        {
                            "name": "main",
                            "image": IMAGE,
                            "command": ["sh", "-c", look],
                            "securityContext": {"privileged": True},
                        }
                    ],
                },
            }
        )
    )
    job_of(jobs, "spy")
    wait_for_phase(jobs, "spy", "Succeeded", "Failed")
    found = log_of(jobs, "spy")
    assert "HOME=/home/alice" in found, "it does see the node's processes"
    assert TOKEN not in found
    jobs("delete", "pod", "spy", "--wait=false")


def test_a_pod_of_a_slurm_job_gets_no_token(jobs: Kubectl) -> None:
    """`pinnace pod` from a job with a token of Slurm's, and others, in its environment."""
    script = (
        f"export SLURM_SITE_TOKEN={TOKEN} KUBE_TOKEN={TOKEN} SLURM_MY_CREDENTIAL={TOKEN}; "
        f"SLURM_JWT={TOKEN} exec pinnace pod --name {NAME} --image {IMAGE} -- env"
    )
    result = jobs.user.run("srun", "--mem=1G", "--time=5", "sh", "-c", script, timeout=120)
    assert "SLURM_JOB_ID=" in result.stdout
    assert TOKEN not in result.stdout


def test_a_directory_that_others_can_write_to_is_not_used_nor_a_seed_in_it(alice: User, bob: User) -> None:
    """As bob, where alice has let PINNACE_HOME be in a directory of a project: he puts a seed there, the first state of
    a cluster with roles for himself.
    """
    project = alice.home.parent / "project"
    project.mkdir()
    project.chmod(0o777)
    inside = "/home/project/alice"
    try:
        seed = alice.run(
            "/opt/pinnace/bin/python", "-c", "from pinnace.cluster.directory import seed_name; print(seed_name())"
        ).stdout.strip()
        bob.run(
            "sh", "-c", f"umask 0; mkdir -p {inside}/seeds/{seed}/member; echo evil > {inside}/seeds/{seed}/member/db"
        )
        result = alice.run("env", f"PINNACE_HOME={inside}", "pinnace", "up", "--no-wait", "--name", "lured", code=None)
        made = project / "alice/clusters/lured/cluster.json"
        used = json.loads(made.read_text())["seed"] if made.exists() else ""
        alice.run("env", f"PINNACE_HOME={inside}", "pinnace", "down", "lured", code=None)
        assert not used.startswith(inside), "the cluster would have begun with what bob wrote"
        assert result.returncode == 1
        assert "is not safe from other users: /home/project can be written by other users" in result.stderr
        assert "set PINNACE_HOME to another directory" in result.stderr
    finally:
        shutil.rmtree(project)


def test_a_cluster_that_bob_has_put_where_alices_would_be_is_not_run(alice: User, bob: User) -> None:
    """As bob, on a compute host: alice's PINNACE_HOME is in /tmp, which every host has for itself. He puts a cluster of
    the same name there, whose programs are his.
    """
    evil = "/tmp/apart/evil"
    tmp = alice.bed.directories.host("n3") / "tmp"
    make = "from pinnace.cluster.directory import *; Directory.named('lured').create(verified_binaries())"
    bob.run("/opt/pinnace/bin/python", "-c", make)
    try:
        plant = f"""umask 0; mkdir -p /tmp/apart/clusters; cd /tmp/apart/clusters
cp -r ~/.local/share/pinnace/clusters/lured . && rm -rf lured/nodes/* lured/logs/*
printf '#!/bin/sh\\necho bob was here > /home/alice/owned; sleep 5\\n' > {evil}; chmod 777 {evil}
sed -i 's#: "/[^"]*/amd64/[^"]*"#: "{evil}"#g' lured/cluster.json; chmod -R a+rwX /tmp/apart"""
        bob.run("sh", "-c", plant, on="n3")
    finally:
        bob.pinnace("down", "lured")
    assert evil in (tmp / "apart/clusters/lured/cluster.json").read_text()
    apart = ["env", "PINNACE_HOME=/tmp/apart", "pinnace"]
    try:
        submitted = alice.run(*apart, "up", "--no-wait", "--name", "lured", "-w", "n3", "--mem", "1G", code=None)
        assert submitted.returncode == 0, submitted.stderr
        owned, log = alice.home / "owned", tmp / "apart/clusters/lured/logs/agent-0.log"

        def over() -> bool:
            return owned.exists() or (log.exists() and "cannot be a node" in log.read_text())

        wait_until("the agent to decide", over, limit=60)
        time.sleep(1)
        assert not owned.exists(), "bob's program ran as alice"
        assert "is not safe from other users" in log.read_text()
    finally:
        alice.run(*apart, "down", "lured", code=None)
        bob.run("sh", "-c", "sleep 1; rm -rf /tmp/apart", on="n3", code=None)
        shutil.rmtree(tmp / "apart", ignore_errors=True)
        alice.run("rm", "-rf", "/tmp/apart")


def test_scratch_in_which_others_can_exchange_directories_is_not_used(alice: User) -> None:
    """Where bob could rename alice's node away and put another in its place, while it starts."""
    alice.run("sh", "-c", "mkdir /tmp/open && chmod 777 /tmp/open", on="n3")
    try:
        words = ["--name", "exchanged", "-w", "n3", "--mem", "1G"]
        result = alice.run("env", "PINNACE_SCRATCH=/tmp/open", "pinnace", "up", *words, code=None)
        alice.pinnace("down", "exchanged", code=None)
        assert result.returncode == 1
        assert "/tmp/open can be written by other users" in result.stderr
        assert "PINNACE_SCRATCH" in result.stderr
    finally:
        alice.run("rm", "-r", "/tmp/open", on="n3")


@pytest.mark.usefixtures("jobs")
def test_a_kubeconfig_in_a_place_of_bobs_is_not_written_to(alice: User, bob: User) -> None:
    """As bob, who has made the directory that alice's KUBECONFIG is in."""
    bob.run("sh", "-c", "umask 0; mkdir /tmp/kube; echo 'kind: Config' > /tmp/kube/config")
    directory = stale_cluster(alice, "stale", {"job": 1})
    try:
        result = alice.run("env", "KUBECONFIG=/tmp/kube/config", "pinnace", "down", "stale", code=None)
        assert result.returncode == 1
        assert (
            "your kubeconfig (/tmp/kube/config) is not safe from other users: /tmp/kube belongs to bob" in result.stderr
        )
        assert not directory.exists(), "the cluster has ended all the same"
        assert bob.run("cat", "/tmp/kube/config").stdout == "kind: Config\n"
    finally:
        bob.run("rm", "-rf", "/tmp/kube")


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    path.chmod(0o644)


def test_an_image_writes_no_file_of_alices(alice: User) -> None:
    """An image that somebody gave to alice: the digest of its layer is the name of a file that does not exist yet."""
    target = "/home/alice/.bash_planted"
    config = {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{target}"]}}
    about = [{"Config": "config.json", "RepoTags": ["localhost/evil:1"], "Layers": ["layer.tar"]}]
    files = {"manifest.json": json.dumps(about).encode(), "config.json": json.dumps(config).encode()}
    write_tar(alice.home / "evil.tar", files | {"layer.tar": b"echo I am alice\n"})
    result = alice.pinnace("image", "load", "evil.tar", code=None)
    assert not (alice.home / ".bash_planted").exists()
    assert result.returncode == 1
    assert "is damaged" in result.stderr


def test_an_image_does_not_keep_alice_waiting(alice: User) -> None:
    """Indices that name one another a hundred times each, six deep: there are a million million ways through them."""
    kind = "application/vnd.oci.image.index.v1+json"
    below: dict[str, Any] = {"mediaType": kind, "digest": f"sha256:{'0' * 64}", "size": 2}
    blobs = {}
    for _ in range(6):
        content = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": [below] * 100}).encode()
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        below = {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}
    entry = below | {"annotations": {"io.containerd.image.name": "localhost/evil:1"}}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps({"manifests": [entry]}).encode()}
    write_tar(alice.home / "evil.tar", files | blobs)
    result = alice.run("timeout", "20", "pinnace", "image", "load", "evil.tar", code=None)
    assert result.returncode == 1, result.stderr
    assert "incomplete" in result.stderr
