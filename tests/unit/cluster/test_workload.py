from __future__ import annotations

import json
from typing import Any

from pinnace.cluster.workload import AppliedObject, exit_code, parse_applied


def pod(*codes: int, phase: str = "Failed", at: str = "2026-11-15T10:00:00Z") -> dict[str, Any]:
    statuses = [{"state": {"terminated": {"exitCode": code, "finishedAt": at}}} for code in codes]
    return {"status": {"phase": phase, "containerStatuses": statuses}}


def test_one_object_and_a_list_of_them() -> None:
    one = {"kind": "Job", "metadata": {"name": "a", "namespace": "default"}}
    namespace = {"kind": "Namespace", "metadata": {"name": "n"}}
    assert parse_applied(json.dumps(one)) == [AppliedObject(kind="Job", namespace="default", name="a")]
    both = parse_applied(json.dumps({"kind": "List", "items": [one, namespace]}))
    assert [applied.kind for applied in both] == ["Job", "Namespace"]
    assert both[1].namespace == ""


def test_the_exit_code_is_that_of_the_container_that_failed_last() -> None:
    assert exit_code([pod(0, phase="Succeeded")]) == 0
    assert exit_code([pod(0, 42)]) == 42
    assert exit_code([pod(3, at="2026-11-15T10:00:00Z"), pod(5, at="2026-11-15T10:00:01Z")]) == 5


def test_a_pod_that_failed_without_a_container_is_a_failure() -> None:
    assert exit_code([{"status": {"phase": "Failed"}}]) == 1
