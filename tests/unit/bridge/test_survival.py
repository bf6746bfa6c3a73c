"""Objects that would end a bridge, beside others that are served all the same: the real bridge, and no cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.bridge.slurmjob import FINALIZER, INTENT
from unit.bridge.api_server import ApiServer, api_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Object = dict[str, Any]

pytestmark = pytest.mark.timeout(120)
JOBS = "/apis/pinnace.dev/v1alpha1/namespaces/lab/slurmjobs"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/lab/leases/pinnace-bridge"
LIMIT = 30.0
DEEP = '{"a": ' * 9000 + '"["' + "}" * 9000


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server(tmp_path) as found:
        yield found


class Bridge:
    """A bridge that was started, and what it says."""

    def __init__(self, api: ApiServer, process: subprocess.Popen[bytes], log: Path) -> None:
        self._api, self._process, self._log = api, process, log

    def until(self, ready: Callable[[], object]) -> None:
        """Wait until something is as it should be. The bridge lives all the time."""
        deadline = time.monotonic() + LIMIT
        while not ready():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, f"{self._api.objects}\n{self.log}"
            time.sleep(0.05)
        assert self._process.poll() is None, self.log

    def status(self, name: str, ready: Callable[[Object], object]) -> Object:
        """The status of a job when it is as it should be."""

        def status() -> Object:
            return dict(json.loads(self._api.objects[f"{JOBS}/{name}"]).get("status", {}))

        self.until(lambda: ready(status()))
        return status()

    def serves(self, name: str) -> None:
        """Whether a job that comes now is dealt with. One that is cancelled before Slurm has it needs no Slurm."""
        self._api.add(f"{JOBS}/{name}", text_of(name, cancel=True))
        self.status(name, lambda status: "completionTime" in status)

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def bridge(api: ApiServer, *options: str) -> Iterator[Bridge]:
    home = api.kubeconfig.parent
    argv = [sys.executable, "-m", "pinnace", "bridge", "--kubeconfig", str(api.kubeconfig), "--no-install", "-n", "lab"]
    log = home / "bridge.log"
    environment = os.environ | {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    with log.open("wb") as file, subprocess.Popen([*argv, *options], env=environment, stdout=file, stderr=file) as run:
        try:
            yield Bridge(api, run, log)
        finally:
            run.kill()


def text_of(name: str, *, status: Object | None = None, metadata: Object | None = None, **spec: Any) -> str:
    about = {"name": name, "namespace": "lab", "uid": f"uid-of-{name}", "resourceVersion": "5",
             "creationTimestamp": "2026-01-01T00:00:00Z"}  # fmt: skip
    job = {"apiVersion": "pinnace.dev/v1alpha1", "kind": "SlurmJob", "metadata": about | (metadata or {})}
    return json.dumps(job | {"spec": {"script": "true", **spec}, "status": status or {}})


def test_an_object_that_is_too_deep_hides_no_others(api: ApiServer) -> None:
    deep, late = (
        text_of(name, inputs=[{"to": "x", "volume": "DEEP"}]).replace('"DEEP"', DEEP) for name in ("deep", "late")
    )
    api.objects[f"{JOBS}/deep"] = deep
    api.objects[f"{JOBS}/listed"] = text_of("listed", cancel=True)
    with bridge(api) as found:
        found.status("listed", lambda status: "completionTime" in status)
        api.add(f"{JOBS}/late", late)
        found.serves("watched")
        assert (api.objects[f"{JOBS}/deep"], api.objects[f"{JOBS}/late"]) == (deep, late)
        assert found.log.count("lab/deep is left alone") == found.log.count("lab/late is left alone") == 1


def test_a_job_may_stay_for_ever(api: ApiServer) -> None:
    done = {"completionTime": "2026-01-01T00:00:00Z"}
    api.objects[f"{JOBS}/eternal"] = text_of("eternal", status=done, ttlSecondsAfterFinished=(1 << 63) - 1)
    with bridge(api) as found:
        for number in range(20):  # more than there are workers
            found.serves(f"after-{number}")


def slurm_in(directory: Path, **scripts: str) -> Path:
    """A Slurm that takes every job, and knows of none afterwards. Where it notes what it was given."""
    (directory / "bin").mkdir()
    noted = directory / "submitted"
    noted.touch()
    usual = {"sbatch": f'echo "$*" >>{noted}; echo 12', "squeue": ":", "sacct": ":"}
    for name, script in (usual | scripts).items():
        path = directory / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return noted


def submitting(since: float) -> Object:
    return {"annotations": {INTENT: f"1 {int(since)} x"}}


def test_a_forged_note_is_no_way_around_the_limit(api: ApiServer, tmp_path: Path) -> None:
    noted = slurm_in(tmp_path)
    running = {"jobID": 7, "state": "RUNNING"}
    api.objects[f"{JOBS}/running"] = text_of("running", status=running, metadata=submitting(1_800_000_000))
    for number in range(5):
        api.objects[f"{JOBS}/forged-{number}"] = text_of(f"forged-{number}", metadata=submitting(0))
    with bridge(api, "--as-me", "lab", "--jobs", "1") as found:
        for number in range(5):
            found.status(f"forged-{number}", lambda status: status.get("reason") == "TooManyJobs")
            assert INTENT not in api.objects[f"{JOBS}/forged-{number}"]
    assert noted.read_text() == ""


def test_forged_notes_do_not_wait_for_each_other(api: ApiServer, tmp_path: Path) -> None:
    noted = slurm_in(tmp_path)
    for number in range(2):
        api.objects[f"{JOBS}/forged-{number}"] = text_of(f"forged-{number}", metadata=submitting(0))
    with bridge(api, "--as-me", "lab", "--jobs", "1") as found:
        found.until(noted.read_text)


@pytest.mark.parametrize("ahead", [10**6, 10**11])
def test_nobody_waits_for_a_note_of_the_future(api: ApiServer, tmp_path: Path, ahead: int) -> None:
    noted = slurm_in(tmp_path)
    api.objects[f"{JOBS}/future"] = text_of("future", metadata=submitting(time.time() + ahead))
    with bridge(api, "--as-me", "lab") as found:
        assert found.status("future", lambda status: "jobID" in status)["jobID"] == 12
    assert noted.read_text().count("\n") == 1


def test_a_job_without_its_note_is_not_left_in_slurm(api: ApiServer, tmp_path: Path) -> None:
    slurm_in(tmp_path, squeue="echo Unable to contact slurm controller >&2; exit 1")
    deleted = {"deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": [FINALIZER]}
    api.objects[f"{JOBS}/deleted"] = text_of("deleted", status={"jobID": 7}, metadata=deleted)
    with bridge(api, "--as-me", "lab") as found:
        found.status("deleted", lambda status: "Reachable" in str(status))
    assert FINALIZER in api.objects[f"{JOBS}/deleted"]


def test_an_object_that_is_not_understood_hides_no_others(api: ApiServer) -> None:
    api.objects[f"{JOBS}/a"] = text_of("a", dependsOn=[{}])
    api.objects[f"{JOBS}/b"] = text_of("b").replace('"spec"', '"other"')
    api.objects[f"{JOBS}/c"] = text_of("c", status={"attempt": "no number"}, metadata=submitting(0))
    api.objects[f"{JOBS}/listed"] = text_of("listed", cancel=True)
    with bridge(api) as found:
        found.status("listed", lambda status: "completionTime" in status)
        found.serves("watched")
        for name in ("a", "b", "c"):
            assert f"slurmjobs.pinnace.dev lab/{name}: " in found.log


def test_an_api_that_has_no_time_ends_no_job(api: ApiServer, tmp_path: Path) -> None:
    """What the API says while a job is made ready is no refusal of the job."""
    noted = slurm_in(tmp_path)
    where = "/api/v1/namespaces/lab/configmaps/scripts"
    api.refused[where] = 500
    job = json.loads(text_of("one"))
    job["spec"] = {"scriptFrom": {"configMap": {"name": "scripts", "key": "run"}}}
    api.objects[f"{JOBS}/one"] = json.dumps(job)
    with bridge(api, "--as-me", "lab") as found:
        found.until(lambda: "lab/one: 500: refused" in found.log)
        assert "completionTime" not in api.objects[f"{JOBS}/one"]
        api.objects[where] = json.dumps({"metadata": {"name": "scripts"}, "data": {"run": "true"}})
        del api.refused[where]
        found.status("one", lambda status: status.get("jobID") == 12)
    assert noted.read_text().count("\n") == 1


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"items": [{}], "metadata": {}}', "[" * 5000, '"\\ud800"'])
def test_answers_that_are_not_understood_are_asked_for_again(api: ApiServer, text: str) -> None:
    api.objects |= {JOBS: text, LEASE: text}
    with bridge(api, "--own-kind-only") as found:
        found.until(lambda: "Lease of namespace lab: " in found.log)
        del api.objects[LEASE]
        found.until(lambda: "watching slurmjobs.pinnace.dev lab: " in found.log)
        del api.objects[JOBS]
        found.serves("after")


def test_partitions_that_are_not_understood(api: ApiServer, tmp_path: Path) -> None:
    slurm_in(tmp_path, sinfo="echo x")
    with bridge(api, "--as-me", "lab", "--nodes") as found:
        found.until(lambda: "partitions: ValueError" in found.log)
        found.serves("after")


def test_an_object_cannot_be_hidden_by_its_managers(api: ApiServer) -> None:
    hidden = text_of("hidden", cancel=True, metadata={"managedFields": "DEEP"}).replace('"DEEP"', f"[{DEEP}]")
    api.objects[f"{JOBS}/hidden"] = hidden
    with bridge(api) as found:
        # The server of this test could not merge into it; that the bridge tries is enough.
        found.until(lambda: "hidden: Cancelled" in found.log)
