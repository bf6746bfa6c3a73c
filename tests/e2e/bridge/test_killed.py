"""A bridge that is killed loses no job and doubles none, wherever it was."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from e2e.bridge.conftest import CLUSTER, jobs_of, running, slurmjob

if TYPE_CHECKING:
    from e2e.bridge.conftest import Cluster

pytestmark = pytest.mark.bed
NAMESPACE = "killed"  # which the bridge of the other tests leaves alone
BRIDGE = ("--name", CLUSTER, "--namespace", NAMESPACE)

HOLDER = "jsonpath={.spec.holderIdentity}"
JOBS = 8
# In place of sbatch: takes the next death from a list, which is over at some time.
TRAP = """#!/bin/bash
how=$(flock ~/trap/list sh -c 'head -1 ~/trap/list; sed -i 1d ~/trap/list')
killed() { echo $PPID >> ~/trap/killed; kill -9 $PPID; }
[ "$how" = before ] && { killed; exit 1; }
[ "$how" = during ] && { killed; sleep 3; }
/usr/bin/sbatch "$@"; code=$?
[ "$how" = after ] && killed
exit $code
"""


@pytest.fixture(scope="module")
def apart(cluster: Cluster) -> Cluster:
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.alice.run("mkdir", "trap")
    cluster.alice.write("trap/sbatch", TRAP, 0o755)
    return replace(cluster, namespace=NAMESPACE)


def all_completed(cluster: Cluster, names: list[str]) -> bool:
    jobs = cluster.kubectl.json("get", "slurmjobs.pinnace.dev", "--namespace", NAMESPACE)["items"]
    ended = {job["metadata"]["name"] for job in jobs if "completionTime" in job.get("status", {})}
    return ended >= set(names)


def test_every_job_runs_once(apart: Cluster) -> None:
    cluster, alice = apart, apart.alice
    deaths = ["after", "before", "none", "during", "after", "none", "after", "before", "during", "after"]
    alice.write("trap/list", "\n".join(deaths) + "\n", 0o666)
    names = [f"once-{number}" for number in range(JOBS)]
    died, begun = 0, False
    deadline = time.monotonic() + 240
    while True:
        with running(alice, *BRIDGE, path="/home/alice/trap") as process:
            if not begun:
                cluster.until("the kinds", cluster.serves_slurmjobs)
                cluster.apply(*(slurmjob(name, f"echo {name} >> ~/once.txt", namespace=NAMESPACE) for name in names))
                begun = True
            while process.poll() is None and time.monotonic() < deadline and not all_completed(cluster, names):
                time.sleep(0.3)
            over = process.poll() is None
        if over:
            break
        died += 1
    assert time.monotonic() < deadline, cluster.overview()
    assert (alice.home / "trap/list").read_text() == ""
    assert died == len(set((alice.home / "trap/killed").read_text().split())), "calls of one bridge may share its death"
    assert sorted((alice.home / "once.txt").read_text().split()) == names
    for name in names:
        job = cluster.job(name)
        numbers = cluster.until("accounting", partial(jobs_of, alice, job["metadata"]["uid"]))
        assert numbers == [str(job["status"]["jobID"])]
        assert job["status"]["state"] == "COMPLETED"


def holder(cluster: Cluster) -> str:
    """The number of the process that leads the namespace, if one does."""
    found = cluster.kubectl("get", "lease", "-n", NAMESPACE, "pinnace-bridge", "--ignore-not-found", "-o", HOLDER)
    return found.split("/")[2] if found else ""


def test_of_two_bridges_one_works(apart: Cluster) -> None:
    """The second waits; it goes on at once if the first dies, and in time if it is only silent."""
    cluster, alice = apart, apart.alice

    def leads(other_than: str = "") -> str:
        return str(
            cluster.until("another to lead", lambda: holder(cluster) not in {"", other_than} and holder(cluster))
        )

    def tell(number: str, *signals: str) -> None:
        for name in signals:
            alice.run("kill", f"-{name}", number)

    script = "echo $SLURM_JOB_NAME >> ~/led.txt"
    with running(alice, *BRIDGE) as first:
        one = leads()
        with running(alice, *BRIDGE) as second:
            waiting = "waiting for the bridge login/"
            cluster.until("the second to wait", lambda: waiting in (alice.home / "bridge.log").read_text())
            cluster.apply(*(slurmjob(f"led-{number}", script, namespace=NAMESPACE) for number in range(4)))
            cluster.until("a job", lambda: cluster.job("led-0").get("status", {}).get("jobID"))
            tell(one, "KILL")
            two = leads(one)
            assert first.wait(60)
            assert all(cluster.finished(f"led-{number}")["state"] == "COMPLETED" for number in range(4))
            with running(alice, *BRIDGE):
                tell(two, "STOP")
                three = leads(two)
                cluster.apply(slurmjob("led-4", script, namespace=NAMESPACE))
                tell(two, "CONT")
                assert second.wait(60) == 1  # it has found out that it leads no more
                assert cluster.finished("led-4")["state"] == "COMPLETED"
                assert holder(cluster) == three
    assert holder(cluster) == ""  # given back by the one that has ended in order
    assert sorted((alice.home / "led.txt").read_text().split()) == [f"led-{number}" for number in range(5)]


def test_a_job_that_slurm_has_forgotten_is_found_in_accounting(apart: Cluster) -> None:
    """It ended while the bridge was dead, and slurmctld knows it no longer."""
    cluster, alice = apart, apart.alice
    alice.write("trap/list", "after\n", 0o666)
    with running(alice, *BRIDGE, path="/home/alice/trap") as process:
        cluster.until("the kinds", cluster.serves_slurmjobs)
        cluster.apply(slurmjob("forgotten", "echo forgotten >> ~/forgotten.txt", namespace=NAMESPACE))
        process.wait(60)
    uid = cluster.job("forgotten")["metadata"]["uid"]
    [number] = cluster.until("accounting", lambda: jobs_of(alice, uid))
    conf = alice.bed.directories.etc / "slurm" / "slurm.conf"
    before = conf.read_text()
    try:
        conf.write_text(before + "MinJobAge=2\n")
        alice.bed.run(["scontrol", "reconfigure"], user="root")
        gone = ["squeue", "--states=all", "--noheader", "--jobs", number]
        cluster.until("slurmctld to forget", lambda: not alice.run(*gone, code=None).stdout.strip(), 180)
    finally:
        conf.write_text(before)
        alice.bed.run(["scontrol", "reconfigure"], user="root")
    with running(alice, *BRIDGE):
        status = cluster.finished("forgotten")
    assert (status["jobID"], status["state"]) == (int(number), "COMPLETED")
    assert (alice.home / "forgotten.txt").read_text() == "forgotten\n"
