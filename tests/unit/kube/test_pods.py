"""Facts about pods and nodes."""

from __future__ import annotations

from typing import Any

import pytest

from pinnace.kube import nodes, pods
from pinnace.kube.pods import exit_code, last_exit_code


def pod(
    *codes: int | None, phase: str = "Failed", at: str = "2026-11-15T10:00:00Z", deleted: bool = False
) -> dict[str, Any]:
    """A pod whose containers have ended with these codes; None is one that runs."""
    states: list[dict[str, Any]] = [
        {"running": {}} if code is None else {"terminated": {"exitCode": code, "finishedAt": at}} for code in codes
    ]
    metadata = {"namespace": "lab", "name": "one"} | ({"deletionTimestamp": at} if deleted else {})
    status = {"phase": phase, "containerStatuses": [{"state": state} for state in states]}
    return {"metadata": metadata, "status": status}


def test_the_exit_code_of_a_workload_is_that_of_the_container_that_failed_last() -> None:
    assert last_exit_code([pod(0, phase="Succeeded")]) == 0
    assert last_exit_code([pod(0, 42)]) == 42
    assert last_exit_code([pod(3, at="2026-11-15T10:00:00Z"), pod(5, at="2026-11-15T10:00:01Z")]) == 5


def test_a_pod_that_failed_without_a_container_is_a_failure() -> None:
    assert last_exit_code([{"status": {"phase": "Failed"}}]) == 1


def test_the_exit_code_of_a_pod_is_that_of_the_container_that_failed() -> None:
    assert exit_code(pod(0, 3, phase="Failed")) == 3
    assert exit_code(pod(0, 0, phase="Failed")) == 1
    assert exit_code(pod(0, phase="Succeeded")) == 0
    assert exit_code(pod(3, None, phase="Running")) == 0


@pytest.mark.parametrize(
    ("body", "terminal", "ended"),
    [
        (pod(0, phase="Succeeded"), True, True),
        (pod(1, phase="Failed"), True, True),
        (pod(1, phase="Failed", deleted=True), True, False),
        (pod(None, phase="Running"), False, False),
        ({"metadata": {}, "status": {}}, False, False),
    ],
)
def test_a_pod_has_ended_when_its_kubelet_is_done(body: dict[str, Any], terminal: bool, ended: bool) -> None:
    assert pods.is_terminal(body) is terminal
    assert pods.has_ended(body) is ended


def test_what_runs_is_found_in_all_kinds_of_containers() -> None:
    assert not pods.running_containers(pod(0, 1))
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        assert pods.running_containers({"status": {kind: [{"state": {"running": {}}}]}})


def test_why_a_container_will_never_start() -> None:
    def waiting(reason: str, **more: str) -> dict[str, Any]:
        return {"status": {"containerStatuses": [{"state": {"waiting": {"reason": reason, **more}}}]}}

    assert pods.cannot_start(waiting("ErrImagePull", message="no such image")) == "ErrImagePull: no such image"
    assert not pods.cannot_start(waiting("ErrImagePull"))
    assert not pods.cannot_start(waiting("ContainerCreating", message="soon"))
    late = waiting("CreateContainerConfigError", message="no such secret")
    assert pods.cannot_start(late)
    assert not pods.cannot_start(late, pods.NO_IMAGE)


def test_to_whom_a_pod_belongs() -> None:
    body = pod()
    assert pods.path(body) == "/api/v1/namespaces/lab/pods/one"
    assert pods.controller_uid(body) == ""
    body["metadata"]["ownerReferences"] = [{"uid": "1"}, {"uid": "2", "controller": True}]
    assert pods.controller_uid(body) == "2"
    body["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "sum"}
    assert pods.belongs_to_job(body, "sum")
    assert not pods.belongs_to_job(body, "other")


def test_where_a_node_is() -> None:
    node = {"status": {"addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "::1"}]}}
    assert nodes.internal_ip(node) == "::1"
    assert not nodes.is_ready(node)
