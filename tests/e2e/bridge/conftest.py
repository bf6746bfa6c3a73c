"""The bridge on the test bed: a cluster of alice's, the bed's Slurm and slurmrestd, and a bridge between them."""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.bridge import s3_server
from e2e.conftest import Kubectl, User
from testbed.errors import WaitError
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLUSTER = "bridged"
IMAGE = "localhost/pinnace-test/busybox:1"
LIMIT = 120.0
Object = dict[str, Any]


@dataclass(kw_only=True)
class Cluster:
    """alice's cluster, and what the tests ask of it."""

    alice: User
    kubectl: Kubectl
    namespace: str = "default"

    def apply(self, *bodies: Object) -> None:
        name = self.alice.write("bodies.yaml", yaml.safe_dump_all(bodies))
        self.kubectl("apply", "-f", name)

    def refused(self, body: Object) -> str:
        """What the API says to an object that it does not take."""
        name = self.alice.write("refused.yaml", yaml.safe_dump(body))
        return self.alice.run(*self.kubectl.command, "apply", "-f", name, code=1).stderr

    def get(self, kind: str, name: str) -> Object:
        found: Object = self.kubectl.json("get", kind, name, "--namespace", self.namespace)
        return found

    def job(self, name: str) -> Object:
        return self.get("slurmjobs.pinnace.dev", name)

    def serves_slurmjobs(self) -> bool:
        return "slurmjobs.pinnace.dev" in self.kubectl("api-resources", "-o", "name", code=None)

    def until(self, what: str, ready: Callable[[], Any], limit: float = LIMIT) -> Any:
        found: list[Any] = []

        def ask() -> bool:
            found[:] = [ready()]
            return bool(found[0])

        try:
            wait_until(what, ask, limit=limit, interval=0.3)
        except WaitError as error:
            raise AssertionError(f"{error}\n{self.overview()}") from error
        return found[0]

    def overview(self) -> str:
        return (
            self.kubectl("get", "slurmjobs.pinnace.dev,pods", "-A", "-o", "wide", code=None)
            + self.alice.run("squeue", "--states=all", code=None).stdout
        )

    def finished(self, name: str, limit: float = LIMIT) -> Object:
        """The status of a job when it has ended, results collected and all."""

        def status() -> Object | None:
            found: Object = self.job(name).get("status") or {}
            return found if "completionTime" in found else None

        found: Object = self.until(f"the end of {name}", status, limit)
        return found

    def state(self, name: str, *states: str) -> Object:
        """The status of a job when it is in one of these states."""

        def status() -> Object | None:
            found: Object = self.job(name).get("status") or {}
            return found if found.get("state") in states else None

        found: Object = self.until(f"{name} to be {' or '.join(states)}", status)
        return found

    def log(self, pod: str) -> str:
        """What a pod has said when it has ended."""
        self.until(f"the end of pod {pod}", lambda: self.phase(pod) in {"Succeeded", "Failed"})
        return self.kubectl("logs", pod)

    def phase(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.status.phase}")

    def gone(self, kind: str, name: str) -> None:
        self.until(f"{kind} {name} to be gone", lambda: not self.kubectl("get", kind, name, "--ignore-not-found"))


@pytest.fixture(scope="session")
def cluster(alice: User) -> Iterator[Cluster]:
    alice.pinnace("up", "-N", "1", "--name", CLUSTER, "--mem", "4G", "--image", "busybox.tar")
    yield Cluster(alice=alice, kubectl=Kubectl(user=alice, cluster=CLUSTER))
    alice.pinnace("down", CLUSTER)


@contextlib.contextmanager
def running(alice: User, *options: str, path: str = "") -> Iterator[subprocess.Popen[str]]:
    """A bridge of alice's on the login host. ``path`` is searched for Slurm's commands before all others."""
    argv = ["pinnace", "bridge", "--interval", "0.5", *options]
    if path:
        argv = ["env", f"PATH={path}:/opt/pinnace/bin:/usr/local/bin:/usr/bin:/bin", *argv]
    log = alice.home / "bridge.log"
    with log.open("a") as file:
        process = alice.bed.popen(argv, user=alice.name, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
    text = log.read_text()
    assert "Traceback" not in text, text


@pytest.fixture(scope="session")
def bridged(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with a bridge that most tests share."""
    served = ("default", "of-bob", "of-nobody", "tenants")
    mine = (word for namespace in served for word in ("--namespace", namespace))
    allowed = ("--socket", "/run/slurmrestd/slurmrestd.sock", "--slurmrestd", "http://login:6820",
               "--s3", f"http://{s3_server.ADDRESS}", "--host-path", "/home/alice/wlm-results")  # fmt: skip
    options = ("--name", CLUSTER, "--as-me", "default", "--image", IMAGE, "--files", "--nodes", *allowed, *mine)
    with running(cluster.alice, *options):
        cluster.until("the kinds", cluster.serves_slurmjobs)
        late = {"scriptlocation": "inline", "jobscript": "#!/bin/bash\nsleep 600\n"}
        cluster.apply(
            secret("slurm-secret", username="alice", password=token(cluster.alice)),
            bridge_job("late", late, properties={"RunLimitMinute": "1"}),  # looked at when it has run out of time
        )
        yield cluster


@pytest.fixture(scope="session")
def s3(alice: User) -> Iterator[str]:
    """The address of an S3 server."""
    with s3_server.s3_server(alice) as endpoint:
        yield endpoint


def s3_secret(namespace: str = "default") -> Object:
    return secret("s3-secret", namespace, accesskey=s3_server.ACCESS, secretkey=s3_server.SECRET)


def slurmjob(name: str, script: str, *, namespace: str = "default", **spec: Any) -> Object:
    options = {"memory": "50M", "time": "5"} | spec.pop("options", {})
    return {
        "apiVersion": "pinnace.dev/v1alpha1",
        "kind": "SlurmJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"script": f"#!/bin/bash\n{script}\n", "options": options, **spec},
    }


def bridge_job(name: str, job: Object, **spec: Any) -> Object:
    properties = {"NodesNumber": "1", "Queue": "main", "Tasks": "1", "slurmJobName": name,
                  "currentWorkingDir": f"/home/alice/bridge/{name}", "envPath": "/usr/bin:/bin", "envLibPath": "/lib",
                  "OutputFileName": f"{name}.out", "ErrorFileName": f"{name}.err"}  # fmt: skip
    return {
        "apiVersion": "bridgejob.ibm.com/v1alpha1",
        "kind": "BridgeJob",
        "metadata": {"name": name},
        "spec": {
            "resourceURL": "http://login:6820/slurm/v0.0.37",
            "resourcesecret": "slurm-secret",
            "image": "quay.io/nobody/needs-this:1",
            "imagepullpolicy": "Always",
            "updateinterval": 1,
            "jobdata": job,
            "jobproperties": json.dumps(properties | spec.pop("properties", {})),
            **spec,
        },
    }


def secret(name: str, namespace: str = "default", **data: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def token(user: User, seconds: int = 3600) -> str:
    return user.run("scontrol", "token", f"lifespan={seconds}").stdout.strip().removeprefix("SLURM_JWT=")


def jobs_of(user: User, uid: str) -> list[str]:
    """The numbers of all jobs that were ever submitted for an object, as accounting has them."""
    argv = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,SubmitLine", "--starttime=now-1hour"]
    return [line.split("|")[0] for line in user.run(*argv).stdout.splitlines() if uid in line]


def conditions(status: Object) -> dict[str, Object]:
    return {condition["type"]: condition for condition in status.get("conditions", ())}


def names_of(user: User, number: int) -> list[str]:
    """What slurmctld calls a job, for each of its tasks. Accounting learns the names of short jobs late."""
    argv = ["squeue", "--states=all", "--noheader", "--format=%j", "--jobs", str(number)]
    return user.run(*argv).stdout.split()
