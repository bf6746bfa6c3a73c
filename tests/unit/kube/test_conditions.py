from __future__ import annotations

from pinnace.kube.conditions import condition, find, is_true, with_condition


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    known = {"type": "Reachable", "status": "False", "reason": "a", "message": "", "lastTransitionTime": "then"}
    [same] = with_condition([known], "Reachable", "False", "b", "still")
    assert (same["reason"], same["lastTransitionTime"]) == ("b", "then")
    [other] = with_condition([known], "Reachable", "True", "c")
    assert other["lastTransitionTime"] != "then"


def test_a_condition_is_found_by_its_type() -> None:
    node = {"status": {"conditions": [condition("Ready", "True", "a"), condition("MemoryPressure", "False", "b")]}}
    assert is_true(node, "Ready")
    assert not is_true(node, "MemoryPressure")
    assert not is_true(node, "DiskPressure")
    assert find(node, "MemoryPressure")["reason"] == "b"
    assert find({"status": {}}, "Ready") == {}


def test_a_condition_without_a_message_has_no_such_field() -> None:
    assert condition("Ready", "False", "a", now="then") == {
        "type": "Ready", "status": "False", "reason": "a", "lastTransitionTime": "then"
    }  # fmt: skip
