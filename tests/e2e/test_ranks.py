"""Pods over several hosts: what `srun` and `mpirun` in their containers start, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import Kubectl, another_site, make_user
from e2e.left import no_process
from e2e.podjobs import LIMIT, flags, job_of, log_of, manifest, status, wait_for_end, wait_for_phase
from testbed.driver import gpu_uuid
from testbed.images import build_image
from testbed.plan import GROUPS, Plan
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from e2e.conftest import User
    from testbed import Bed

pytestmark = [pytest.mark.bed, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PROJECT = GROUPS[0]
IMAGE = "localhost/pinnace-test/openmpi:1"
TWO = "--nodes=2 --ntasks-per-node=2"
# That all ranks meet, between hosts and, in messages too large for a mailbox, on each host.
MEET = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
near = world.Split_type(MPI.COMM_TYPE_SHARED)
there = bytearray(1 << 22)
near.Sendrecv([bytearray(b"x") * (1 << 22), MPI.BYTE], dest=1 - near.rank, recvbuf=[there, MPI.BYTE])
assert there == bytearray(b"x") * (1 << 22)
hosts = world.gather(MPI.Get_processor_name())
if world.rank == 0:
    print(world.size, len(set(hosts)), near.size, os.getuid(), flush=True)
"""
CRASH = "from mpi4py import MPI\nimport os\nif MPI.COMM_WORLD.rank == 1: os._exit(5)\nMPI.COMM_WORLD.barrier()"
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: together}
spec:
  storageClassName: shared
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Mi}}
"""
# Each rank says what it sees, and leaves something.
LOOK = """
cat /settings/one /single.conf /secret/word /written
test ! -e /etc/debian_version && echo gone
echo $WORD $(pwd) $(ls /own | wc -l)
touch /own/$SLURM_PROCID /together/$SLURM_PROCID /together/sub/$(hostname)
touch /home-of-alice/never 2>/dev/null || echo closed
"""


@pytest.fixture(scope="module")
def site(real_store: Path) -> Iterator[Bed]:
    """One whose srun has PMIx, by which ranks of Open MPI find each other: Debian's newest Slurm has none."""
    with another_site("ranks", Plan(hosts=3, fast=True, slurm="24.11"), real_store) as bed:
        yield bed


@pytest.fixture(scope="module")
def alice(site: Bed) -> User:
    return make_user(site, "alice", "busybox")


@pytest.fixture(scope="module")
def carol(site: Bed) -> User:
    """Has no entry in /etc/subuid."""
    return make_user(site, "carol")


@pytest.fixture(scope="module")
def jobs(alice: User) -> Iterator[Kubectl]:
    give_image(alice)
    # On the host that the shared cluster leaves alone: a pod over all three needs room on each.
    images = ["--image", "openmpi.tar", "--image", "busybox.tar"]
    alice.pinnace("up", "--pods-as-jobs", "--name", "ranks", "-w", "n3", *images)
    yield Kubectl(user=alice, cluster="ranks")
    alice.pinnace("down", "ranks")


def give_image(user: User) -> None:
    shutil.copy(build_image("openmpi"), user.home / "openmpi.tar")
    (user.home / "openmpi.tar").chmod(0o644)


def give_example(user: User, name: str) -> str:
    return user.write(name, (EXAMPLES / name).read_text())


@pytest.fixture(scope="module")
def base(jobs: Kubectl) -> Iterator[str]:
    """A pod over two hosts, with volumes of all kinds, in which to try things."""
    jobs("create", "configmap", "settings", "--from-literal=one=first")
    jobs("create", "secret", "generic", "word", "--from-literal=word=hush-hush")
    jobs.apply(CLAIM)
    volumes: dict[str, dict[str, Any]] = {
        "project": {"hostPath": {"path": f"/home/{PROJECT.directory}"}},
        "settings": {"configMap": {"name": "settings"}},
        "secret": {"secret": {"secretName": "word", "defaultMode": 0o400}},
        "together": {"persistentVolumeClaim": {"claimName": "together"}},
        "own": {"emptyDir": {}},
        "home-of-alice": {"hostPath": {"path": str(Path("/home", jobs.user.name))}},
    }
    body = json.loads(
        manifest(
            "base",
            ["sleep", "3600"],
            image=IMAGE,
            metadata=flags(TWO),
            volumes=[{"name": name, **volume} for name, volume in volumes.items()],
        )
    )
    main = body["spec"]["containers"][0]
    main["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in volumes]
    main["volumeMounts"] += [
        {"name": "settings", "mountPath": "/single.conf", "subPath": "one"},
        {"name": "together", "mountPath": "/deep/er", "subPath": "sub"},
    ]
    main["volumeMounts"][-3]["readOnly"] = True
    main["env"] = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}}]
    jobs.apply(json.dumps(body))
    wait_for_phase(jobs, "base", "Running")
    yield "base"
    jobs("delete", "pod", "base", "--ignore-not-found")


def inside(jobs: Kubectl, script: str, *, code: int | None = 0, pod: str = "base") -> subprocess.CompletedProcess[str]:
    return jobs.user.run(*jobs.command, "exec", pod, "--", "bash", "-c", script, code=code)


def hosts_of(jobs: Kubectl, pod: str) -> list[str]:
    job = job_of(jobs, pod)
    nodes = jobs.user.run("squeue", "--noheader", "--format=%N", "--jobs", job).stdout.strip()
    return jobs.user.run("scontrol", "show", "hostnames", nodes).stdout.split()


def commands(user: User, host: str) -> str:
    """The command lines of all of a user's processes on a host."""
    return user.run("ps", "-u", str(user.uid), "-o", "args=", on=host, code=None).stdout


def runs(user: User, host: str, words: str) -> bool:
    return words in commands(user, host)


def runs_no_more(user: User, host: str, words: str) -> bool:
    return not runs(user, host, words)


def test_the_examples(jobs: Kubectl) -> None:
    for name in ("mpi.yaml", "sweep.yaml"):
        jobs("apply", "-f", give_example(jobs.user, name))
    wait_for_phase(jobs, "pi", "Succeeded", "Failed")
    one = r"pi is 3\.14\d+ by (\d+) steps of 4 ranks on (\w+) \2 (\w+) \3\n"
    log = log_of(jobs, "pi")
    assert re.fullmatch(one, log), log
    jobs("wait", "--for=condition=complete", "job/sweep", "--timeout=240s", timeout=300)
    pods = [pod["metadata"]["name"] for pod in jobs.json("get", "pods", "-l", "job-name=sweep")["items"]]
    said = [re.fullmatch(one, log_of(jobs, pod)) for pod in pods]
    assert sorted(match[1] for match in said if match) == ["1000", "2000", "3000", "4000"]
    for pod in pods:
        row = jobs.user.run("sacct", "-X", "-n", "-P", "--format=NNodes,State", "-j", job_of(jobs, pod)).stdout.strip()
        assert row in {"2|RUNNING", "2|COMPLETED"}
    jobs("delete", "job/sweep", "pod/pi")


def test_ranks_meet_however_they_are_started(jobs: Kubectl, base: str) -> None:
    inside(jobs, f"cat > /meet.py <<'X'\n{MEET}\nX")
    expected = f"4 2 2 {jobs.user.uid}\n"
    assert inside(jobs, "srun python3 /meet.py").stdout == expected, base
    assert inside(jobs, "mpirun python3 /meet.py").stdout == expected
    assert inside(jobs, "mpiexec -n 4 python3 /meet.py").stdout == expected


def test_ranks_see_what_the_container_sees(jobs: Kubectl, base: str) -> None:
    inside(jobs, "echo written > /written; rm -f /etc/debian_version; mkdir -p /together/sub; chmod 777 /together/sub")
    inside(jobs, f"cat > /look.sh <<'X'\n{LOOK}\nX")
    lines = inside(jobs, "cd /usr/share && srun --label --ntasks=2 --nodes=2 sh /look.sh").stdout.splitlines()
    for rank in range(2):
        seen = [line.partition(": ")[2] for line in lines if line.startswith(f"{rank}: ")]
        assert seen == ["firstfirsthush-hushwritten", "gone", "hush-hush /usr/share 0", "closed"], lines
    hosts = hosts_of(jobs, base)
    left = inside(jobs, "ls /together /own; ls /deep/er").stdout.split()
    assert left == ["/own:", "0", "/together:", "0", "1", "sub", *sorted(hosts)]


def test_ranks_and_their_pod_have_the_users_groups(jobs: Kubectl, base: str) -> None:
    """The pod is a job, and one of its ranks is on another host."""
    touch = "touch /project/of-$(hostname)"
    inside(jobs, f"umask 007; {touch}; srun --ntasks=2 --nodes=2 sh -c '{touch}'")
    project = jobs.user.home.parent / PROJECT.directory
    for name in (base, *hosts_of(jobs, base)):
        made = (project / f"of-{name}").stat()
        assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (jobs.user.uid, PROJECT.gid, 0o660), name


def test_streams_directory_and_exit_codes(jobs: Kubectl, base: str) -> None:
    told = inside(jobs, "printf 'in\\n' | srun --ntasks=2 --nodes=2 sh -c 'cat; echo err >&2'")
    assert (told.stdout, told.stderr) == ("in\nin\n", "err\nerr\n"), base
    assert inside(jobs, "srun --nodes=1 --ntasks=1 --chdir=/tmp pwd").stdout == "/tmp\n"
    cases = {
        "srun sh -c 'exit 3'": (3, "Exited with exit code 3"),
        "srun no-such-program": (127, "there is no such program in the image"),
        "srun /etc/passwd": (126, "Permission denied"),
        "srun --ntasks=100 hostname": (1, "More processors requested than permitted"),
        "srun --output=file hostname": (2, "--output is not for pods"),
        "srun --frobnicate hostname": (2, "--frobnicate is not known here"),
        "srun --ntasks=2": (2, "there is no program to run"),
        f"mpirun python3 -c '{CRASH}'": (5, "Exit code:    5"),
    }
    for script, (code, words) in cases.items():
        done = inside(jobs, script, code=None)
        assert (done.returncode, words in done.stdout + done.stderr) == (code, True), (script, done)
    done = inside(jobs, "mpirun no-such-program", code=None)
    assert done.returncode, "Open MPI has numbers of its own"
    assert "no-such-program" in done.stderr


def test_all_ranks_end_if_one_of_them_crashes(jobs: Kubectl, base: str) -> None:
    done = inside(jobs, f"srun python3 -c '{CRASH}'", code=None)
    assert done.returncode not in {0, 1, 2}
    assert "Exited with exit code 5" in done.stderr
    for host in hosts_of(jobs, base):
        wait_until("the other ranks to end", partial(runs_no_more, jobs.user, host, "os._exit(5)"), limit=60)


def test_signals_reach_the_ranks(jobs: Kubectl, base: str) -> None:
    """The shell waits until both ranks have said that they are there."""
    rank = "trap 'exit 7' USR1; echo ready; sleep 600 & wait"
    script = (
        f'srun --ntasks=2 --nodes=2 sh -c "{rank}" > /ready & '
        "until [ $(grep -c ready /ready) = 2 ]; do sleep 0.2; done; kill -{} $!; wait $!"
    )
    assert inside(jobs, script.replace("{}", "USR1"), code=None).returncode == 7, base
    assert inside(jobs, script.replace("{}", "TERM"), code=None).returncode in {137, 143}


def test_what_a_container_knows_is_nobody_elses_business(jobs: Kubectl, base: str) -> None:
    """While ranks run: not on a command line, and not in a file or socket that others can reach."""
    user, hosts = jobs.user, hosts_of(jobs, base)
    script = "srun --ntasks=2 --nodes=2 sleep 654 & until [ -e /enough ]; do sleep 0.2; done; kill $!; wait"
    process = user.bed.popen(
        ["pinnace", "kubectl", "--name", jobs.cluster, "exec", base, "--", "bash", "-c", script], user=user.name
    )
    try:
        for host in hosts:
            wait_until("the ranks", partial(runs, user, host, "sleep 654"), limit=LIMIT)
            assert "hush-hush" not in commands(user, host)
            tmp = user.bed.directories.host(host) / "tmp"
            own = list(tmp.glob(f"pinnace-{user.uid}-*"))
            assert own
            assert all(path.stat().st_mode & 0o077 == 0 for path in own)
        files = list((user.home / ".local/share/pinnace/clusters/ranks/ranks").rglob("*.json"))
        assert files
        assert all("hush-hush" in path.read_text() and path.stat().st_mode & 0o077 == 0 for path in files)
    finally:
        inside(jobs, "touch /enough", code=None)
        process.communicate(timeout=60)
    assert not list((user.home / ".local/share/pinnace/clusters/ranks/ranks").rglob("*.json"))


@pytest.mark.parametrize("how", ["delete", "scancel"])
def test_the_end_of_a_pod_is_that_of_its_ranks(jobs: Kubectl, how: str) -> None:
    user, name = jobs.user, f"doomed-{how}"
    jobs.apply(manifest(name, ["srun", "sleep", "543"], image=IMAGE, metadata=flags(TWO)))
    job = job_of(jobs, name)
    wait_for_phase(jobs, name, "Running")
    hosts = hosts_of(jobs, name)
    for host in hosts:
        wait_until("the ranks", partial(runs, user, host, "sleep 543"), limit=LIMIT)
    if how == "delete":
        jobs("delete", "pod", name)
    else:
        user.run("scancel", job)
    wait_for_end(user, job)
    for host in hosts:
        wait_until("the ranks to end", partial(runs_no_more, user, host, "sleep 543"), limit=60)
    if how == "scancel":
        wait_for_phase(jobs, name, "Failed")
        wait_until("Slurm's reason", lambda: status(jobs, name)["reason"] == "SlurmCancelled", limit=LIMIT)
        jobs("delete", "pod", name)


def test_other_ways_to_have_several_tasks(jobs: Kubectl) -> None:
    """A pod that never starts ranks, one on a single host, one of another user, one whose image has no mpiexec."""
    host = "test $(srun --ntasks=1 hostname) != $(hostname) && srun --overcommit --ntasks=2 echo rank"
    pods: dict[str, Any] = {
        "once": manifest("once", ["sh", "-c", "echo $SLURM_NTASKS; exit 4"], metadata=flags("--ntasks=4")),
        "alone": manifest("alone", ["sh", "-c", host]),
        "other": manifest(
            "other",
            ["sh", "-c", f"id -u; srun python3 -c '{MEET}'; srun --nodes=1 --ntasks=1 id -G"],
            image=IMAGE,
            metadata=flags("--nodes=3 --ntasks-per-node=2"),
            securityContext={"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1234},
        ),
        "lacking": manifest(
            "lacking",
            ["true"],
            metadata={"annotations": {"pinnace.dev/flags": "--ntasks=2", "slurm-job.vk.io/mpi-flags": "--tag-output"}},
        ),
    }
    for body in pods.values():
        jobs.apply(body)
    said = {name: (wait_for_phase(jobs, name, "Succeeded", "Failed")["phase"], log_of(jobs, name)) for name in pods}
    assert said["once"] == ("Failed", "4\n")
    assert said["alone"] == ("Succeeded", "rank\nrank\n")
    assert said["other"] == ("Succeeded", f"1000\n6 3 2 {jobs.user.uid}\n{jobs.user.uid} 1234\n")
    assert said["lacking"][0] == "Failed"
    assert "mpiexec" in said["lacking"][1]
    assert "there is no such program in the image" in said["lacking"][1]
    jobs("delete", "pod", *pods)


def test_ranks_have_the_gpus_of_their_hosts(jobs: Kubectl) -> None:
    """The driver of each host, and of its GPUs the one that is the job's."""
    body = manifest(
        "gpus",
        ["sh", "-c", "nvidia-smi; srun nvidia-smi"],
        image=IMAGE,
        metadata=flags("--nodes=2 --ntasks-per-node=1 --nodelist=n2,n3"),
        resources={"limits": {"nvidia.com/gpu": "1"}},
    )
    jobs.apply(body)
    assert wait_for_phase(jobs, "gpus", "Succeeded", "Failed")["phase"] == "Succeeded", log_of(jobs, "gpus")
    first, *ranks = re.findall(r"UUID: (\S+)\)", log_of(jobs, "gpus"))
    assert sorted(ranks) == [gpu_uuid(jobs.user.bed.plan.host(host), 0) for host in ("n2", "n3")]
    assert first in ranks
    jobs("delete", "pod", "gpus")


def test_a_user_without_subordinate_ids(carol: User) -> None:
    give_image(carol)
    carol.pinnace("up", "--pods-as-jobs", "--name", "one-user", "--image", "openmpi.tar")
    try:
        jobs = Kubectl(user=carol, cluster="one-user")
        both = f"srun python3 -c '{MEET}'; mpirun python3 -c '{MEET}'"
        jobs.apply(manifest("meet", ["sh", "-c", both], image=IMAGE, metadata=flags(TWO)))
        phase = wait_for_phase(jobs, "meet", "Succeeded", "Failed")["phase"]
        assert (phase, log_of(jobs, "meet")) == ("Succeeded", f"4 2 2 {carol.uid}\n" * 2)
    finally:
        carol.pinnace("down", "one-user")
    for host in ("n1", "n2", "n3"):
        wait_until("everything to end", partial(no_process, carol, host), limit=60)
        tmp = carol.bed.directories.host(host) / "tmp"
        assert not list(tmp.glob(f"pinnace-{carol.uid}-*"))
