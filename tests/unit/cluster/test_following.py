"""Following a workload whose API answers with errors, or from which objects disappear."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pinnace.cluster.kubectl import Kubectl
from pinnace.cluster.manifest import Manifest
from pinnace.cluster.running import ManifestRun
from pinnace.cluster.slurm_pod import slurm_pod
from pinnace.cluster.slurm_pod_run import run_on_node
from pinnace.cluster.workload import AppliedObject, Workload
from pinnace.errors import ClusterError
from pinnace.kube.access import Access
from pinnace.timeline.recorder import Recorder
from unit.bridge.api_server import ApiServer, api_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server(tmp_path) as api:
        show(api)
        yield api


def show(api: ApiServer, *pods: dict[str, Any], **jobs: str) -> None:
    """Let the API have these pods, and these jobs with the condition that each has."""
    api.objects = {PODS: json.dumps({"items": pods})}
    for name, condition in jobs.items():
        status = {"conditions": [{"type": condition, "status": "True"}]} if condition else {}
        api.objects[f"{JOBS}/{name}"] = json.dumps({"status": status})


def pod(name: str, phase: str, code: int = 0) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code}}
    statuses = [{"name": "main", "state": state}] if phase in {"Succeeded", "Failed"} else []
    metadata = {"name": name, "namespace": "default", "uid": name}
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": statuses}}


def workload(api: ApiServer, **kinds: str) -> Workload:
    made = Workload(Kubectl(path="kubectl", kubeconfig=api.kubeconfig))
    made.objects = [AppliedObject(kind=kind, namespace="default", name=name) for name, kind in kinds.items()]
    return made


class Started(dict[str, str]):
    """The kubelet: what is created runs at once."""

    def __setitem__(self, name: str, text: str) -> None:
        super().__setitem__(name, json.dumps(json.loads(text) | pod("slurm-job-7", "Running")))


def asked_logs(api: ApiServer) -> int:
    return sum("/log?" in path for path in api.asked)


def unread(*_: object) -> None:
    """What prints to a pipe that nobody reads any more."""
    raise BrokenPipeError


def nothing(*_: object) -> None:
    pass


def next_times(*changes: Callable[[], None]) -> Callable[[], bool]:
    """What ``follow`` asks before each look at the objects, as a way to change something between two of them."""
    left = list(changes)

    def enough() -> bool:
        if left:
            left.pop(0)()
        return False

    return enough


def test_a_job_that_is_deleted(api: ApiServer) -> None:
    show(api, work="")
    deleted = next_times(nothing, lambda: show(api))
    with pytest.raises(ClusterError) as caught:
        workload(api, work="Job").follow(nothing, nothing, deleted)
    assert caught.value.message == "Job work was deleted before it ended"
    assert caught.value.exit_code == 1


def test_a_pod_that_is_deleted(api: ApiServer) -> None:
    show(api, pod("single", "Running"))
    with pytest.raises(ClusterError, match=r"^Pod single was deleted before it ended$"):
        workload(api, single="Pod").follow(nothing, nothing, next_times(nothing, lambda: show(api)))


def test_what_is_deleted_after_its_end_has_ended(api: ApiServer) -> None:
    """As a Job with ttlSecondsAfterFinished is, while another one still runs."""
    show(api, pod("single", "Failed", 3), first="Complete", second="")
    later = next_times(nothing, lambda: show(api, second=""), lambda: show(api, second="Complete"))
    assert workload(api, first="Job", second="Job", single="Pod").follow(nothing, nothing, later) == 3


def test_an_api_that_answers_with_an_error_is_asked_again(api: ApiServer) -> None:
    api.objects = {}  # 404, though there is always a list of pods
    asked = []

    def check_alive() -> None:
        asked.append(1)
        if len(asked) == 3:
            show(api, work="Complete")

    assert workload(api, work="Job").follow(nothing, check_alive) == 0
    assert len(asked) == 3


def test_that_the_cluster_has_ended_is_the_reason(api: ApiServer) -> None:
    api.objects = {}

    def check_alive() -> None:
        raise ClusterError("the cluster has ended")

    with pytest.raises(ClusterError, match="the cluster has ended"):
        workload(api, work="Job").follow(nothing, check_alive)


def test_the_pod_of_a_slurm_job_that_is_deleted(api: ApiServer) -> None:
    asked = slurm_pod({"SLURM_JOB_ID": "7", "KUBE_IMAGE": "x"})
    path = f"{PODS}/slurm-job-7"
    lines: list[str] = []

    def on_line(text: str) -> None:
        lines.append(text)
        del api.objects[path], api.objects[f"{path}/log"]

    api.objects[f"{path}/log"] = "a line"
    api.objects = Started(api.objects)
    with pytest.raises(ClusterError, match=r"^Pod slurm-job-7 was deleted before it ended$"):
        run_on_node(Access.from_file(api.kubeconfig), asked, "n1", on_line)
    assert lines == ["a line"]


def test_what_containers_have_printed_is_seen_although_it_is_enough(api: ApiServer) -> None:
    ended, running = pod("ended", "Succeeded"), pod("running", "Running")
    running["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}}]
    followed = workload(api, web="Deployment")
    lines: list[tuple[str, str]] = []

    def slowly(container: str, line: str) -> None:
        time.sleep(0.5)
        lines.append((container, line))

    def enough() -> bool:
        show(api, ended, running)
        api.objects[f"{PODS}/ended/log"] = "first\nlast\n"
        return True

    assert followed.follow(slowly, nothing, enough) == 0
    assert lines == [("ended/main", "first"), ("ended/main", "last")]


def test_a_log_that_cannot_be_had_yet_is_asked_for_again(api: ApiServer) -> None:
    log = f"{PODS}/ended/log"
    api.refused[log] = 500
    lines: list[str] = []

    def enough() -> bool:
        show(api, pod("ended", "Succeeded"))
        api.objects[log] = "first\nlast\n"
        threading.Timer(0.5, api.refused.clear).start()
        return True

    assert workload(api, web="Deployment").follow(lambda _, line: lines.append(line), nothing, enough) == 0
    assert lines == ["first", "last"]


def test_lines_that_cannot_be_shown_are_collected_and_the_log_is_read_once(api: ApiServer, tmp_path: Path) -> None:
    show(api, pod("single", "Failed", 3))
    api.objects[f"{PODS}/single/log"] = "first\nmiddle\nlast\n"
    applied = {"kind": "Pod", "metadata": {"name": "single", "namespace": "default"}}
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\necho '{json.dumps(applied)}'\n")
    kubectl.chmod(0o755)
    (tmp_path / "pod.yaml").write_text(json.dumps(applied | {"apiVersion": "v1"}))
    cluster: Any = SimpleNamespace(
        kubectl_command=Kubectl(path=str(kubectl), kubeconfig=api.kubeconfig),
        kubeconfig=api.kubeconfig, timeline=Recorder(), check_alive=nothing,
    )  # fmt: skip
    manifest = Manifest.read(tmp_path / "pod.yaml")
    assert ManifestRun(cluster, manifest, unread, output_dir=tmp_path / "out").run().exit_code == 3
    assert (tmp_path / "out" / "single_main.log").read_text() == "first\nmiddle\nlast\n"
    assert asked_logs(api) == 1


def test_the_pod_of_a_slurm_job_whose_lines_cannot_be_shown_runs_to_its_end(api: ApiServer) -> None:
    path = f"{PODS}/slurm-job-7"

    def on_line(_: str) -> None:
        dict.__setitem__(api.objects, path, json.dumps(pod("slurm-job-7", "Failed", 3)))
        raise OSError("no space left")

    api.objects[f"{path}/log"] = "first\nlast\n"
    api.objects = Started(api.objects)
    asked = slurm_pod({"SLURM_JOB_ID": "7", "KUBE_IMAGE": "x"})
    assert run_on_node(Access.from_file(api.kubeconfig), asked, "n1", on_line) == 3
    assert asked_logs(api) == 1


def test_a_credential_plugin_that_fails_for_a_while_ends_no_workload(api: ApiServer, tmp_path: Path) -> None:
    """As ours does while a tunnel cannot be started. What it gives has expired at once, so it is asked every time."""
    status = {"token": "x", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    script = f"[ ! -e {tmp_path}/broken ] && echo '{json.dumps({'status': status})}'"
    about = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script]}
    document = json.loads(api.kubeconfig.read_text())
    document["users"][0]["user"] = {"exec": about}
    api.kubeconfig.write_text(json.dumps(document))
    show(api, pod("single", "Succeeded"), work="")
    api.objects[f"{PODS}/single/log"] = "a line\n"
    followed, lines = workload(api, work="Job", single="Pod"), list[str]()
    (tmp_path / "broken").touch()
    asked = []

    def check_alive() -> None:
        asked.append(1)
        if len(asked) == 2:
            show(api, pod("single", "Succeeded"), work="Complete")
            api.objects[f"{PODS}/single/log"] = "a line\n"
            (tmp_path / "broken").unlink()

    assert followed.follow(lambda _, line: lines.append(line), check_alive) == 0
    assert (len(asked), lines) == (2, ["a line"])
