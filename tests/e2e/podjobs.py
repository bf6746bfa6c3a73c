"""Pods that are Slurm jobs, as tests make and watch them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from e2e.conftest import Kubectl, User

LIMIT = 120.0
IMAGE = "localhost/pinnace-test/busybox:1"


def manifest(name: str, command: list[str], **more: Any) -> str:
    """A pod, as YAML that is JSON. ``metadata`` and ``resources`` go where they belong, the rest into its spec."""
    metadata = {"name": name, **more.pop("metadata", {})}
    container = {"name": "main", "image": more.pop("image", IMAGE), "command": command}
    container["resources"] = more.pop("resources", {})
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **more}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def flags(text: str) -> dict[str, Any]:
    return {"annotations": {"pinnace.dev/flags": text}}


def status(jobs: Kubectl, name: str) -> dict[str, Any]:
    found: dict[str, Any] = jobs.json("get", "pod", name)["status"]
    return found


def wait_for_phase(jobs: Kubectl, name: str, *phases: str) -> dict[str, Any]:
    wait_until(f"{name} to be {phases}", lambda: status(jobs, name)["phase"] in phases, limit=LIMIT, interval=0.5)
    return status(jobs, name)


def job_of(jobs: Kubectl, name: str) -> str:
    """The number of a pod's job, once it has one."""

    def number() -> str:
        return str(jobs.json("get", "pod", name)["metadata"].get("annotations", {}).get("pinnace.dev/job", ""))

    wait_until(f"a job for {name}", lambda: bool(number()), limit=LIMIT, interval=0.3)
    return number()


def wait_for_end(user: User, job: str) -> str:
    """A job's state in accounting, once it has ended."""

    def state() -> str:
        return user.run("sacct", "-X", "--noheader", "--parsable2", "--format=State", "-j", job).stdout.strip()

    live = ("", "PENDING", "RUNNING", "COMPLETING", "REQUEUED")
    wait_until(f"the end of job {job}", lambda: state() not in live, limit=LIMIT, interval=0.5)
    return state()


def wait_for_no_job(jobs: Kubectl) -> None:
    """A pod's job ends a moment after the pod."""

    def comments() -> str:
        return jobs.user.run("squeue", "--me", "--noheader", "--format=%k").stdout

    wait_until("no job to be left", lambda: f"pinnace:{jobs.cluster}:" not in comments(), limit=LIMIT, interval=0.5)


def queue(user: User, job: str, form: str) -> str:
    return user.run("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={form}").stdout.strip()


def events(jobs: Kubectl, name: str) -> str:
    return jobs(
        "get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "jsonpath={.items[*].message}"
    )


class Asking(Protocol):
    """Somebody with a kubectl."""

    @property
    def user(self) -> User: ...

    @property
    def command(self) -> list[str]: ...


def log_of(jobs: Asking, name: str, *words: str) -> str:
    """What a pod said. Who asks in the moment in which its node ends may have to ask again (docs/limits.md)."""
    said: list[str] = []

    def ask() -> bool:
        done = jobs.user.run(*jobs.command, "logs", name, *words, code=None)
        said[:] = [done.stdout]
        return done.returncode == 0

    wait_until(f"the log of {name}", ask, limit=LIMIT, interval=0.5)
    return said[0]


def timeline_of(user: User, cluster: str, node: str) -> list[str]:
    """The steps of the start of a node that has joined, in the order of time."""
    shown = user.pinnace("timeline", cluster, "--node", node, "--output", "json").stdout
    return [str(step["name"]) for step in json.loads(shown)["steps"]]
