"""When a pod has ended, and when another may come before its kubelet says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinnace.podjobs.container_status import Notes, container_code, has_ended, room_for_two
from pinnace.podjobs.container_status import is_spent as spent
from pinnace.spec import Share
from unit.podjobs.samples import container, pod

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30


def is_spent(body: dict[str, Any], noted: Callable[[str], int | None] = lambda _: None) -> bool:
    return spent(body, noted)


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


def test_a_pod_is_spent_when_all_containers_have_succeeded() -> None:
    assert is_spent(with_codes(0, 0))
    assert not has_ended(with_codes(0, 0))
    assert is_spent(with_codes(0, phase="Succeeded"))
    for body in (with_codes(), with_codes(0, None), with_codes(0, 1), with_codes(0, deleted=True)):
        assert not is_spent(body)


def test_what_containerd_has_noted_counts_before_the_kubelet_has_seen_it(tmp_path: Path) -> None:
    body, notes = with_codes(0, None), Notes(tmp_path)
    assert not is_spent(body, notes.exit_code)
    place = tmp_path / "io.containerd.grpc.v1.cri" / "containers" / "1"
    place.mkdir(parents=True)
    for text, ended in (
        ('{"Version":"v1","StartedAt":17,"FinishedAt":0,"ExitCode":0}', False),
        ('{"Version":"v1","Star', False),
        ('{"Version":"v1","StartedAt":17,"FinishedAt":18,"ExitCode":3}', False),
        ('{"Version":"v1","StartedAt":17,"FinishedAt":18,"ExitCode":0}', True),
    ):
        (place / "status").write_text(text)
        assert is_spent(body, notes.exit_code) is ended


def test_a_container_that_restarts_always_is_never_spent() -> None:
    body = with_codes(0)
    body["spec"]["restartPolicy"] = "Always"
    assert not is_spent(body)


def test_a_sidecar_that_runs_keeps_its_pod() -> None:
    body = with_codes(0)
    body["status"]["initContainerStatuses"] = [{"state": {"running": {}}}]
    assert not is_spent(body)


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
    assert room_for_two(body, Share(cpus=1, memory=GIB)) is room


def test_the_exit_code_of_a_pod_is_that_of_the_container_that_failed() -> None:
    assert container_code(with_codes(0, 3, phase="Failed")) == 3
    assert container_code(with_codes(0, 0, phase="Failed")) == 1
    assert container_code(with_codes(0, phase="Succeeded")) == 0
