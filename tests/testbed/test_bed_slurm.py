"""Slurm as a user meets it, on a real bed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from testbed.slurmconf import REST_SOCKET
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from testbed import Bed

pytestmark = pytest.mark.bed

ENXIO = "No such device or address"  # allowed, but there is no GPU behind it
EPERM = "Operation not permitted"


def rest(bed: Bed, *options: str) -> str:
    """The status that slurmrestd answers with to a request for the nodes."""
    curl = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *options]
    return bed.run([*curl, "http://login:6820/slurm/v0.0.45/nodes"]).stdout


def job_id(text: str) -> str:
    match = re.search(r"\d+", text)
    assert match, text
    return match.group()


def has_state(bed: Bed, job: str, state: str) -> bool:
    return bed.run(["sacct", "-X", "-n", "-P", "-j", job, "-o", "State"]).stdout.startswith(state)


def test_all_nodes_are_idle(bed: Bed) -> None:
    assert bed.nodes() == {"n1": "idle", "n2": "idle", "n3": "idle"}


def test_a_job_across_two_hosts(bed: Bed) -> None:
    script = "hostname; readlink /proc/self/ns/net; readlink /proc/self/ns/mnt; id -un"
    rows = bed.run(["srun", "--label", "-N2", "-w", "n1,n2", "bash", "-c", script]).stdout.splitlines()
    first, second = ([row[3:] for row in rows if row.startswith(f"{task}: ")] for task in (0, 1))
    assert (first[0], second[0]) == ("n1", "n2")
    assert first[1] != second[1]
    assert first[2] != second[2]
    assert first[3] == second[3] == "alice"


def test_home_is_shared_and_tmp_is_not(bed: Bed) -> None:
    bed.run(["srun", "-w", "n1", "sh", "-c", "echo n1 >~/shared; echo n1 >/tmp/own; echo n1 >/dev/shm/own"])
    assert bed.run(["cat", "shared"], on="login").stdout == "n1\n"
    assert bed.run(["srun", "-w", "n2", "cat", "shared"]).stdout == "n1\n"
    assert bed.run(["ls", "/tmp/own", "/dev/shm/own"], on="n1").returncode == 0
    for host in ("n2", "login"):
        assert bed.run(["sh", "-c", "ls /tmp/own || ls /dev/shm/own"], on=host, check=False).returncode != 0


def test_homes_are_private(bed: Bed) -> None:
    assert bed.run(["ls", "/home/alice"], user="bob", check=False).returncode != 0


def test_sacct_knows_the_job(bed: Bed) -> None:
    job = job_id(bed.run(["sbatch", "-N2", "--wrap", "srun hostname"]).stdout)
    wait_until(f"job {job}", lambda: has_state(bed, job, "COMPLETED"), limit=60, interval=0.2)
    assert bed.run(["sacct", "-X", "-n", "-P", "-j", job, "-o", "User,Account,NNodes"]).stdout == "alice|research|2\n"


def test_a_user_without_an_association_is_refused(bed: Bed) -> None:
    result = bed.run(["srun", "true"], user="dave", check=False)
    assert "Invalid account" in result.stderr


def test_limits_of_partitions_are_enforced(bed: Bed) -> None:
    assert bed.run(["srun", "-p", "short", "-t", "5", "true"]).returncode == 0
    assert "time limit" in bed.run(["srun", "-p", "short", "-t", "30", "true"], check=False).stderr


def test_both_qos_are_there(bed: Bed) -> None:
    assert bed.run(["srun", "--qos=high", "true"]).returncode == 0
    assert "Invalid qos" in bed.run(["srun", "--qos=highest", "true"], check=False).stderr


def test_features_choose_hosts(bed: Bed) -> None:
    assert bed.run(["srun", "-C", "cpu", "hostname"]).stdout == "n1\n"
    assert bed.run(["srun", "-C", "gpu&rack1", "hostname"]).stdout == "n3\n"


def test_a_job_gets_the_gpus_that_it_asked_for_and_no_others(bed: Bed) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES; cat /dev/nvidia0; cat /dev/nvidia1"
    result = bed.run(["srun", "-p", "gpu", "-w", "n2", "--gres=gpu:1", "sh", "-c", script], check=False)
    assert result.stdout == "0\n"
    assert f"nvidia0: {ENXIO}" in result.stderr
    assert f"nvidia1: {EPERM}" in result.stderr
    assert bed.run(["srun", "-w", "n2", "sh", "-c", script], check=False).stderr.count(EPERM) == 2


def test_a_job_over_its_memory_is_killed(bed: Bed) -> None:
    hungry = "import time; block = bytearray(300 << 20); time.sleep(60)"
    result = bed.run(["srun", "--mem=100", "python3", "-c", hungry], check=False)
    assert result.returncode != 0
    assert "memory limit" in result.stderr


def test_a_job_leaves_no_process_behind(bed: Bed) -> None:
    bed.run(["srun", "-w", "n1", "sh", "-c", "setsid sleep 87654 </dev/null >/dev/null 2>&1 & sleep 0.2"])

    def gone() -> bool:
        return bed.run(["pgrep", "-f", "^sleep 87654"], user="root", on="n1", check=False).returncode == 1

    wait_until("the end of a detached process", gone, limit=60, interval=0.2)


def test_slurmrestd_wants_a_token(bed: Bed) -> None:
    token = bed.run(["scontrol", "token"]).stdout.strip().removeprefix("SLURM_JWT=")
    header = ("-H", "X-SLURM-USER-NAME: alice", "-H", f"X-SLURM-USER-TOKEN: {token}")
    assert rest(bed) == "401"
    assert rest(bed, *header[:3], "X-SLURM-USER-TOKEN: " + token[:-4] + "AAAA") != "200"
    assert rest(bed, *header) == "200"
    assert rest(bed, *header, "--unix-socket", REST_SOCKET) == "200"


@pytest.mark.parametrize(("user", "first"), [("alice", "200000"), ("bob", "300000")])
def test_a_user_has_subordinate_ids(bed: Bed, user: str, first: str) -> None:
    mapped = ["unshare", "--map-root-user", "--map-auto", "cat", "/proc/self/uid_map"]
    assert first in bed.run(mapped, user=user, on="n1").stdout.split()


def test_a_user_without_subordinate_ids(bed: Bed) -> None:
    assert (
        bed.run(["unshare", "--map-root-user", "--map-auto", "true"], user="carol", on="n1", check=False).returncode
        != 0
    )
    assert bed.run(["unshare", "--map-root-user", "id", "-u"], user="carol", on="n1").stdout == "0\n"


def test_rootless_namespaces_work_in_a_job(bed: Bed) -> None:
    script = "mount -t tmpfs x /mnt && mount -t proc x /proc && mount -t sysfs x /sys && ls /sys/class/net"
    command = ["unshare", "-r", "-n", "-m", "-p", "--fork", "sh", "-c", script]
    assert bed.run(["srun", "-w", "n1", *command], user="carol").stdout == "lo\n"


def test_tun_and_fuse_are_for_everyone(bed: Bed) -> None:
    bed.run(["srun", "-w", "n1", "sh", "-c", "exec 3<>/dev/fuse 4<>/dev/net/tun"])


def test_outside_is_reached_through_the_router(bed: Bed) -> None:
    serve = ["python3", "-u", "-m", "http.server", "8000", "--directory", "/etc/ssl"]
    with bed.popen(serve, on="outside") as server:
        assert server.stdout is not None
        server.stdout.readline()
        get = ["curl", "--silent", "--fail", "--output", "/dev/null", "http://outside:8000/"]
        assert bed.run(["srun", "-w", "n1", *get]).returncode == 0
        assert server.stderr is not None
        assert server.stderr.readline().startswith("10.50.0.11 "), "the address is not translated"
        server.terminate()


def test_names_outside_the_bed_do_not_exist(bed: Bed) -> None:
    assert bed.run(["getent", "hosts", "debian.org"], check=False).returncode == 2


def test_status_in_json(bed_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "testbed", "status", "-o", "json"]
    result = subprocess.run(command, env=bed_environment, capture_output=True, text=True, check=True, timeout=30)
    hosts = {host["name"]: host for host in json.loads(result.stdout)["hosts"]}
    assert list(hosts) == ["login", "n1", "n2", "n3", "outside"]
    assert hosts["n1"]["address"] == "10.50.0.11"
    assert (hosts["n1"]["state"], hosts["n1"]["node"]) == ("up", "idle")
    assert {daemon["name"] for daemon in hosts["login"]["daemons"] if daemon["state"] == "running"} == {
        "munged",
        "mariadbd",
        "slurmdbd",
        "slurmctld",
        "slurmrestd",
    }
