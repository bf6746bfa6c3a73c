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

from bridge.api_server import ApiServer, api_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Object = dict[str, Any]

pytestmark = pytest.mark.timeout(120)
JOBS = "/apis/pinnace.dev/v1alpha1/namespaces/lab/slurmjobs"
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

    def status(self, name: str, ready: Callable[[Object], object]) -> Object:
        """The status of a job when it is as it should be, and the bridge lives."""
        deadline = time.monotonic() + LIMIT
        while not ready(found := json.loads(self._api.objects[f"{JOBS}/{name}"]).get("status", {})):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, f"{found}\n{self.log}"
            time.sleep(0.05)
        assert self._process.poll() is None, self.log
        return dict(found)

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


def test_an_object_cannot_be_hidden_by_its_managers(api: ApiServer) -> None:
    hidden = text_of("hidden", cancel=True, metadata={"managedFields": "DEEP"}).replace('"DEEP"', f"[{DEEP}]")
    api.objects[f"{JOBS}/hidden"] = hidden
    with bridge(api) as found:
        # The server of this test could not merge into it; that the bridge tries is enough.
        deadline = time.monotonic() + LIMIT
        while "hidden: Cancelled" not in found.log:
            assert time.monotonic() < deadline, found.log
            time.sleep(0.05)
