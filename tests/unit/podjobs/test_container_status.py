"""When a pod has ended, and when another may come before its kubelet says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinnace.kube.pods import has_ended
from pinnace.podjobs import container_status
from pinnace.podjobs.container_status import ContainerdStatus, fits_twice
from pinnace.spec import Share
from unit.podjobs.samples import container, pod

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30


def is_completed(body: dict[str, Any], exit_code_of: Callable[[str], int | None] = lambda _: None) -> bool:
    return container_status.is_completed(body, exit_code_of)


def with_codes(*codes: int | None, phase: str = "Running", **more: Any) -> dict[str, Any]:
    """A pod whose containers have ended with these codes; None is one that runs."""
    body = pod(phase=phase, restartPolicy="Never", **more)
    states: list[dict[str, Any]] = [
        {"running": {}} if code is None else {"terminated": {"exitCode": code}} for code in codes
    ]
    body["status"]["containerStatuses"] = [
        {"state": state, "containerID": f"containerd://{number}"} for number, state in enumerate(states)
    ]
    return body


def test_a_pod_is_completed_when_all_containers_have_succeeded() -> None:
    assert is_completed(with_codes(0, 0))
    assert not has_ended(with_codes(0, 0))
    assert is_completed(with_codes(0, phase="Succeeded"))
    for body in (with_codes(), with_codes(0, None), with_codes(0, 1), with_codes(0, deleted=True)):
        assert not is_completed(body)


def test_what_containerd_has_noted_counts_before_the_kubelet_has_seen_it(tmp_path: Path) -> None:
    body, containerd = with_codes(0, None), ContainerdStatus(tmp_path)
    assert not is_completed(body, containerd.exit_code)
    place = tmp_path / "io.containerd.grpc.v1.cri" / "containers" / "1"
    place.mkdir(parents=True)
    for text, ended in (
        ('{"Version":"v1","StartedAt":17,"FinishedAt":0,"ExitCode":0}', False),
        ('{"Version":"v1","Star', False),
        ('{"Version":"v1","StartedAt":17,"FinishedAt":18,"ExitCode":3}', False),
        ('{"Version":"v1","StartedAt":17,"FinishedAt":18,"ExitCode":0}', True),
    ):
        (place / "status").write_text(text)
        assert is_completed(body, containerd.exit_code) is ended


def test_a_container_that_restarts_always_is_never_completed() -> None:
    body = with_codes(0)
    body["spec"]["restartPolicy"] = "Always"
    assert not is_completed(body)


def test_a_sidecar_that_runs_keeps_its_pod() -> None:
    body = with_codes(0)
    body["status"]["initContainerStatuses"] = [{"state": {"running": {}}}]
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
    assert fits_twice(body, Share(cpus=1, memory=GIB)) is room
