"""The same through slurmrestd: with tokens of several users, each in a namespace of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from e2e.bridge.conftest import Cluster, conditions, names_of, secret, slurmjob, token
from e2e.conftest import User
from testbed import daemons

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.bed
URL = "http://login:6820"
DIRECTORY = "/home/alice/rest"
HPC = {"secret": "hpc"}


@pytest.fixture(scope="module")
def rest(bridged: Cluster) -> Iterator[Cluster]:
    bridged.alice.run("mkdir", "-p", DIRECTORY)
    credentials = {"username": "alice", "token": token(bridged.alice), "directory": DIRECTORY}
    bridged.apply(secret("hpc", url=URL, **credentials))
    bridged.apply(secret("socket", url="unix:/run/slurmrestd/slurmrestd.sock", **credentials))
    bridged.apply(secret("elsewhere", url="unix:/run/munge/munge.socket.2", **credentials))
    yield bridged
    bridged.kubectl("delete", "slj", "--all", "--timeout=60s")


def test_jobs_arrays_and_files(rest: Cluster) -> None:
    script = "#SBATCH --job-name=named\necho $WORD $1; echo x > out.$SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID"
    rest.apply(
        slurmjob("r-array", script, cluster=HPC, options={"array": "0-2"}, arguments=["one two"],
                 env=[{"name": "WORD", "value": "hello"}], results=[{"from": "out.*", "directory": "~/rest-results"}]),
        slurmjob("r-socket", "hostname", cluster={"secret": "socket"}),
        slurmjob("r-elsewhere", "hostname", cluster={"secret": "elsewhere"}),
        slurmjob("r-refused", "hostname", cluster=HPC, options={"partition": "nope"}),
        slurmjob("r-unknown", "hostname", cluster=HPC, flags=["--nodelist=n1"]),
    )  # fmt: skip
    status = rest.finished("r-array")
    assert (status["state"], status["exitCode"]) == ("FAILED", 2)
    assert status["tasks"] == {"pending": 0, "running": 0, "succeeded": 1, "failed": 2}
    assert status["usage"]["tres"]
    assert conditions(status)["Collected"]["status"] == "True"
    assert len(list((rest.alice.home / "rest-results").iterdir())) == 3
    assert rest.log("r-array").count("hello one two") == 3
    assert names_of(rest.alice, status["jobID"]) == ["named"] * 3
    assert rest.finished("r-socket")["state"] == "COMPLETED"
    assert "does not call unix" in str(conditions(rest.finished("r-elsewhere"))["Failed"]["message"])
    assert "Invalid partition name" in str(conditions(rest.finished("r-refused"))["Failed"]["message"])
    assert "--nodelist" in str(conditions(rest.finished("r-unknown"))["Failed"]["message"])


def test_suspend_cancel_and_deletion(rest: Cluster) -> None:
    loop = "trap 'echo >> heard' CONT; while :; do sleep 0.2; done"
    rest.apply(slurmjob("r-cancel", loop, cluster=HPC), slurmjob("r-delete", "sleep 300", cluster=HPC))
    directory = rest.state("r-cancel", "RUNNING")["workingDirectory"]
    rest.apply(slurmjob("r-queued", "true", cluster=HPC, options={"dependency": "singleton", "jobName": "r-cancel"}))
    rest.state("r-queued", "PENDING")
    for suspended, reason in (("true", "JobHeldUser"), ("false", "Dependency")):
        for name in ("r-cancel", "r-queued"):
            rest.kubectl("patch", "slj", name, "--type=merge", "-p", f'{{"spec":{{"suspend":{suspended}}}}}')
        rest.until(reason, partial(lambda wanted: rest.job("r-queued")["status"].get("reason") == wanted, reason))
    rest.until("it to go on", lambda: rest.alice.run("ls", directory).stdout.count("heard"))
    rest.kubectl("patch", "slj", "r-cancel", "--type=merge", "-p", '{"spec":{"cancel":true}}')
    number = str(rest.state("r-delete", "RUNNING")["jobID"])
    rest.kubectl("delete", "slj", "r-delete")
    assert number not in rest.alice.run("squeue", "--noheader", "--format=%i").stdout.split()
    assert rest.finished("r-cancel")["state"] == "CANCELLED"
    assert rest.finished("r-queued")["state"] == "COMPLETED"


def test_slurmrestd_that_goes_and_comes_back(rest: Cluster) -> None:
    rest.apply(slurmjob("r-through", "while [ ! -e go ]; do sleep 0.2; done", cluster=HPC))
    directory = rest.state("r-through", "RUNNING")["workingDirectory"]
    bed = rest.alice.bed
    daemon = daemons.find(bed.plan, "slurmrestd")
    daemons.stop(daemon, bed.hosts())
    try:
        rest.apply(slurmjob("r-waiting", "true", cluster=HPC))
        for name in ("r-through", "r-waiting"):
            unreachable(rest, name)
        rest.alice.run("touch", f"{directory}/go")
    finally:
        daemons.start((daemon,), bed.hosts())
    assert rest.finished("r-through")["state"] == "COMPLETED"
    assert rest.finished("r-waiting")["state"] == "COMPLETED"


def unreachable(cluster: Cluster, name: str) -> str:
    """Wait until a job says that its Slurm cannot be reached, and why."""

    def found() -> dict[str, object] | None:
        condition = conditions(cluster.job(name).get("status", {})).get("Reachable", {})
        return condition if condition.get("status") == "False" else None

    return str(cluster.until(f"{name} to be out of reach", found)["message"])


def test_a_token_that_has_expired_and_a_secret_that_is_gone(rest: Cluster) -> None:
    mine = {"username": "alice", "directory": DIRECTORY}
    old = token(rest.alice, 1)
    rest.alice.run("sleep", "2")
    rest.apply(secret("short", url=URL, token=old, **mine))
    rest.apply(slurmjob("r-short", "sleep 300", cluster={"secret": "short"}))
    assert "expired at" in unreachable(rest, "r-short")
    rest.apply(secret("short", url=URL, token=token(rest.alice), **mine))
    number = str(rest.state("r-short", "RUNNING")["jobID"])

    rest.kubectl("delete", "secret", "short")
    rest.apply(slurmjob("r-no-secret", "true", cluster={"secret": "short"}))
    assert "secret short" in unreachable(rest, "r-no-secret")
    rest.kubectl("delete", "slj", "r-short")  # what runs is still ended
    assert number not in rest.alice.run("squeue", "--noheader", "--format=%i").stdout.split()
    rest.kubectl("delete", "slj", "r-no-secret")


def test_each_namespace_has_its_own_user(rest: Cluster) -> None:
    bob = User(bed=rest.alice.bed, name="bob")
    for namespace in ("of-bob", "of-nobody"):
        rest.kubectl("create", "namespace", namespace)
    credentials = {"url": URL, "directory": "/home/bob"}
    rest.apply(
        secret("slurm", "of-bob", username="bob", token=token(bob), **credentials),
        secret("forged", "of-bob", username="alice", token=token(bob), **credentials),
        slurmjob("his", "id -un", namespace="of-bob", options={"workingDirectory": "/home/bob"}),
        slurmjob("forged", "id -un", namespace="of-bob", cluster={"secret": "forged"}),
        slurmjob("nobody", "id -un", namespace="of-nobody"),
        slurmjob("thief", "id -un", namespace="of-nobody", cluster=HPC),
    )

    def status(namespace: str, name: str) -> dict[str, object]:
        found: dict[str, object] = rest.kubectl.json("get", "slj", "-n", namespace, name).get("status", {})
        return found

    rest.until("bob's job", lambda: status("of-bob", "his").get("state") == "COMPLETED")
    number = str(status("of-bob", "his")["jobID"])
    assert bob.run("squeue", "--states=all", "--noheader", "--format=%u", "--jobs", number).stdout.strip() == "bob"
    others = (("of-bob", "forged"), ("of-nobody", "nobody"), ("of-nobody", "thief"))
    rest.until("the others to have none", lambda: all("Reachable" in conditions(status(*other)) for other in others))
    assert not any("jobID" in status(*other) for other in others)
    # Nobody can tell whether Slurm has a job of the forged one: its owner has to say that it may go.
    rest.kubectl("annotate", "slj", "-n", "of-bob", "forged", "pinnace.dev/abandon=true")
    rest.kubectl("delete", "namespace", "of-bob", "of-nobody")
