"""When a pod has ended, and when another may come before its kubelet says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinnace.kube.pods import has_ended
from pinnace.podjobs import container_status
from pinnace.podjobs.container_status import ContainerdStatus, fits_twice, note_created
from pinnace.spec import Allocation
from unit.podjobs.samples import container, pod

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30


def is_completed(
    body: dict[str, Any], exit_code_of: Callable[[dict[str, Any], str], int | None] = lambda _pod, _name: None
) -> bool:
    return container_status.is_completed(body, exit_code_of)


def with_codes(*codes: int | None, phase: str = "Running", **more: Any) -> dict[str, Any]:
    """A pod whose containers have ended with these codes; None is one that runs."""
    names = [f"c{number}" for number in range(len(codes))]
    body = pod(phase=phase, restartPolicy="Never", containers=[container() | {"name": name} for name in names], **more)
    states: list[dict[str, Any]] = [
        {"running": {}} if code is None else {"terminated": {"exitCode": code}} for code in codes
    ]
    body["status"]["containerStatuses"] = [
        {"name": name, "state": state} for name, state in zip(names, states, strict=True)
    ]
    return body


def test_a_pod_is_completed_when_all_containers_have_succeeded() -> None:
    assert is_completed(with_codes(0, 0))
    assert not has_ended(with_codes(0, 0))
    assert is_completed(with_codes(0, phase="Succeeded"))
    for body in (with_codes(None), with_codes(0, None), with_codes(0, 1), with_codes(0, deleted=True)):
        assert not is_completed(body)


def created(tmp_path: Path, uid: str, name: str, number: str) -> None:
    about = {"io.kubernetes.cri.sandbox-uid": uid, "io.kubernetes.cri.container-name": name}
    note_created({"annotations": about}, number, tmp_path)


def write_status(tmp_path: Path, number: str, text: str) -> None:
    place = tmp_path / "io.containerd.grpc.v1.cri" / "containers" / number
    place.mkdir(parents=True, exist_ok=True)
    (place / "status").write_text(text)


def test_what_containerd_has_noted_counts_before_the_kubelet_has_seen_it(tmp_path: Path) -> None:
    body, containerd = with_codes(0, None), ContainerdStatus(tmp_path, tmp_path)
    containerd.begin()
    assert not is_completed(body, containerd.exit_code)
    created(tmp_path, body["metadata"]["uid"], "c1", "b7")
    for text, ended in (
        ('{"Version":"v1","StartedAt":17,"FinishedAt":0,"ExitCode":0}', False),
        ('{"Version":"v1","Star', False),
        ('{"Version":"v1","StartedAt":17,"FinishedAt":18,"ExitCode":3}', False),
        ('{"Version":"v1","StartedAt":17,"FinishedAt":18,"ExitCode":0}', True),
    ):
        write_status(tmp_path, "b7", text)
        assert is_completed(body, containerd.exit_code) is ended
    created(tmp_path, body["metadata"]["uid"], "c1", "b8")  # it was started again
    assert not is_completed(body, containerd.exit_code)


def test_a_pod_that_its_kubelet_has_not_reported_yet_can_have_ended(tmp_path: Path) -> None:
    body, containerd = with_codes(None), ContainerdStatus(tmp_path, tmp_path)
    del body["status"]["containerStatuses"]
    containerd.begin()
    created(tmp_path, body["metadata"]["uid"], "c0", "b7")
    write_status(tmp_path, "b7", '{"StartedAt":17000000000,"FinishedAt":0,"ExitCode":0}')
    assert not is_completed(body, containerd.exit_code)
    assert (containerd.started(body), containerd.ended(body)) == (17.0, None)
    write_status(tmp_path, "b7", '{"StartedAt":17000000000,"FinishedAt":18500000000,"ExitCode":0}')
    assert is_completed(body, containerd.exit_code)
    assert containerd.ended(body) == 18.5


def test_the_end_of_all_containers_is_the_end_of_a_pod_that_is_not_restarted(tmp_path: Path) -> None:
    body, containerd = with_codes(None, None), ContainerdStatus(tmp_path, tmp_path)
    containerd.begin()
    for name, number in (("c0", "b7"), ("c1", "b8")):
        assert containerd.last_containers(body) == []  # one is not there yet
        created(tmp_path, body["metadata"]["uid"], name, number)
        write_status(tmp_path, number, '{"StartedAt":17,"FinishedAt":0}')
    assert containerd.last_containers(body) == ["b7", "b8"]
    write_status(tmp_path, "b8", '{"StartedAt":0,"FinishedAt":0}')
    assert containerd.last_containers(body) == []
    body["spec"]["restartPolicy"] = "OnFailure"
    write_status(tmp_path, "b8", '{"StartedAt":17,"FinishedAt":0}')
    assert containerd.last_containers(body) == []


def test_containers_are_noted_where_somebody_wants_to_know(tmp_path: Path) -> None:
    body = with_codes(None)
    created(tmp_path, body["metadata"]["uid"], "c0", "b7")
    assert list(tmp_path.iterdir()) == []
    containerd = ContainerdStatus(tmp_path, tmp_path)
    containerd.begin()
    created(tmp_path, "../escape", "c0", "b7")
    assert containerd.started(body) is None
    assert [path.name for path in tmp_path.rglob("*")] == [container_status.CREATED]


def test_a_container_that_restarts_always_is_never_completed() -> None:
    body = with_codes(0)
    body["spec"]["restartPolicy"] = "Always"
    assert not is_completed(body)


def test_a_sidecar_that_runs_keeps_its_pod() -> None:
    body = with_codes(0)
    body["spec"]["initContainers"] = [container() | {"name": "sidecar", "restartPolicy": "Always"}]
    body["status"]["initContainerStatuses"] = [{"name": "sidecar", "state": {"running": {}}}]
    assert not is_completed(body)


@pytest.mark.parametrize(
    ("body", "room"),
    [
        (pod(), True),
        (pod(containers=[container(cpu="500m", memory="512Mi")]), True),
        (pod(containers=[container(cpu="600m")]), False),
        (pod(containers=[container(memory="600Mi")]), False),
        (pod(containers=[container(extended={"nvidia.com/gpu": "1"})]), False),
        (pod(hostNetwork=True), False),
        (pod(containers=[container(ports=[{"containerPort": 80, "hostPort": 80}])]), False),
    ],
)
def test_two_may_meet_where_the_kubelet_counts_both(body: dict[str, Any], room: bool) -> None:
    assert fits_twice(body, Allocation(cpus=1, memory=GIB)) is room
