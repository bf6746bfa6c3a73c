"""Sessions of pinnace's models: what they ask for, and that nothing of them goes on after them."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.bench import cluster_sessions
from pinnace.bench.cluster_sessions import (
    SLURMJOBS,
    ClusterSession,
    OverSession,
    PodJobSession,
    SlurmJobSession,
    cluster_session,
    describe_cluster,
)
from pinnace.bench.measurements import Model
from pinnace.bench.run_directory import Settings
from pinnace.bench.sessions import Site
from pinnace.cluster import configuration
from pinnace.cluster.cluster import Cluster
from pinnace.cluster.kubectl import Kubectl
from pinnace.errors import ApiError, BenchError
from pinnace.kube.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KUBECONFIG = {
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "x", "user": {}}],
}
KUBECTL = """#!/bin/sh
[ "$*" = "create --validate=false -f -" ] && exec cat > {}
"""


class RunningCluster(Cluster):
    """One whose kubectl writes down what it shall create."""

    def __init__(self, path: Path) -> None:
        self._kubeconfig, self.created = path / "kubeconfig", path / "created"
        self._kubeconfig.write_text(json.dumps(KUBECONFIG))
        (path / "kubectl").write_text(KUBECTL.format(self.created))
        (path / "kubectl").chmod(0o755)
        self._path = str(path / "kubectl")

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    @property
    def kubectl_command(self) -> Kubectl:
        return Kubectl(path=self._path, kubeconfig=self._kubeconfig)

    def check_alive(self) -> None: ...


class SlurmJobApi(Api):
    """Has the SlurmJobs that were created. They never end; a look at one may be interrupted."""

    def __init__(self, created: Path, *, interrupted: bool = False) -> None:
        self._created, self._interrupted = created, interrupted
        self.deleted: set[str] = set()

    def names(self) -> list[str]:
        items = json.loads(self._created.read_text())["items"]
        return [item["metadata"]["name"] for item in items if item["metadata"]["name"] not in self.deleted]

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
        assert (body, content_type) == (None, "application/json")
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        if (method, path) == ("GET", SLURMJOBS):
            return {"items": []}
        assert path.startswith(f"{SLURMJOBS}/")
        name = path.removeprefix(f"{SLURMJOBS}/")
        if name not in self.names():
            raise ApiError(404, path)
        if method == "DELETE":
            self.deleted.add(name)
        else:
            assert method == "GET"
        return {"metadata": {"name": name}}


def site(directory: Path) -> Site:
    return Site(settings=Settings(directory=str(directory)), hosts=("n1", "n2"), cpus=1, addresses={})


def session_in(path: Path, *, interrupted: bool = False) -> tuple[SlurmJobSession, SlurmJobApi]:
    cluster = RunningCluster(path)
    session = SlurmJobSession(site(path), cluster)
    session.api = api = SlurmJobApi(cluster.created, interrupted=interrupted)
    return session, api


def test_a_slurmjob_that_takes_too_long_is_deleted(tmp_path: Path) -> None:
    session, api = session_in(tmp_path)
    with pytest.raises(BenchError, match="has not ended within 0 s"):
        session._job(["sleep", "60"], limit=0.0)
    assert len(api.deleted) == 1
    assert api.names() == []


def test_ctrl_c_deletes_the_slurmjob(tmp_path: Path) -> None:
    session, api = session_in(tmp_path, interrupted=True)
    with pytest.raises(KeyboardInterrupt):
        session._job(["sleep", "60"], limit=60.0)
    assert len(api.deleted) == 1


def test_no_slurmjob_of_many_stays_in_the_queue(tmp_path: Path) -> None:
    session, api = session_in(tmp_path)
    with pytest.raises(BenchError, match="not all of 3 SlurmJobs have ended"):
        session.pods_per_second(3, 0.0)
    assert len(api.deleted) == 3


def test_an_error_is_told_also_if_the_api_has_gone(tmp_path: Path) -> None:
    session = SlurmJobSession(site(tmp_path), RunningCluster(tmp_path))
    with pytest.raises(ConnectionRefusedError):
        session._job(["sleep", "60"], limit=60.0)


def test_sessions_have_slurmjobs_of_other_names(tmp_path: Path) -> None:
    """A job of an earlier round must not write the files that a later one waits for."""
    names = set()
    for _ in range(2):
        session, api = session_in(tmp_path)
        with pytest.raises(BenchError):
            session._job(["true"], limit=0.0)
        names |= api.deleted
    assert len(names) == 2


def test_pods_as_jobs_have_the_settings_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "SITE", tmp_path / "pinnace.toml")
    monkeypatch.setattr(configuration, "site_root", lambda: tmp_path / "opt" / "components")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PINNACE_HOME", str(tmp_path / "home"))
    (tmp_path / "pinnace.toml").write_text('[pods]\nmemory = "none"\nmax_jobs = 50\n')
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "pods.toml").write_text("max_jobs = 7\n")
    provisioning = describe_cluster(site(tmp_path), Model.PODS, 1).provisioning
    assert provisioning
    assert (provisioning.settings["memory"], provisioning.settings["max_jobs"]) == ("none", 7)


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        (Model.OVER, ["started", "start-up", "settle", "client"]),  # its start-up is that of the cluster
        (Model.PODS, ["started", "settle", "start-up", "client"]),
        (Model.SLURMJOB, ["started", "settle", "start-up"]),
    ],
)
def test_a_cluster_settles_before_anything_but_its_own_start_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Model, steps: list[str]
) -> None:
    heard: list[str] = []

    def say(step: str) -> Callable[..., float]:
        def work(*_args: object, **_options: object) -> float:
            heard.append(step)
            return 0.0

        return work

    def settle() -> None:
        heard.append("settle")

    @contextlib.contextmanager
    def starting(*_args: object, **_options: object) -> Iterator[None]:
        heard.append("started")
        yield

    monkeypatch.setattr(cluster_sessions, "started", starting)
    monkeypatch.setattr(cluster_sessions, "describe_cluster", lambda *_: RunningCluster(tmp_path))
    monkeypatch.setattr(ClusterSession, "wait_startup", say("start-up"))
    monkeypatch.setattr(PodJobSession, "measure_startup", say("start-up"))
    monkeypatch.setattr(SlurmJobSession, "measure_slurmjob_startup", say("start-up"))
    monkeypatch.setattr(SlurmJobSession, "wait_bridge", lambda _: None)
    monkeypatch.setattr(ClusterSession, "create_client", say("client"))
    with cluster_session(
        site(tmp_path),
        model,
        1,
        startup=True,
        workload=True,
        claims=False,
        ending=contextlib.nullcontext,
        settle=settle,
    ):
        pass
    assert heard == steps


def test_the_pod_of_a_start_is_created_as_soon_as_the_api_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses pods as long as their ServiceAccount is not there."""
    cluster = RunningCluster(tmp_path)
    kubectl = tmp_path / "kubectl"
    willing = kubectl.read_text()
    kubectl.write_text("#!/bin/sh\necho forbidden >&2; exit 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(cluster_sessions, "API_LIMIT", 0.3)
        with pytest.raises(BenchError, match=r"no pod could be created .*forbidden"):
            OverSession(site(tmp_path), cluster).create_early_startup_pod()
    refusing = f"#!/bin/sh\n[ -e {tmp_path}/there ] || {{ touch {tmp_path}/there; exit 1; }}\n"
    kubectl.write_text(refusing + willing.removeprefix("#!/bin/sh\n"))
    OverSession(site(tmp_path), cluster).create_early_startup_pod()
    [item] = json.loads(cluster.created.read_text())["items"]
    assert item["metadata"]["name"] == "startup"
