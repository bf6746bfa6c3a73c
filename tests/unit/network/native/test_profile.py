"""The seccomp profile of a container whose calls are caught."""

from __future__ import annotations

from typing import Any

import pytest

from pinnace.network.native.profile import (
    ALLOW,
    ANNOTATION,
    CALLS,
    CONTAINER_TYPE,
    NOTIFY,
    catching,
    with_notifications,
)

LISTENER = "/run/pinnace/seccomp.sock"
POD_NETWORK = {"type": "network", "path": "/proc/17/ns/net"}
NODES_NETWORK = {"type": "network", "path": "/proc/18/ns/net"}


def bundle(kind: str = "container", *, network: dict[str, str] | None = None, **annotations: str) -> dict[str, Any]:
    namespaces = [{"type": "pid"}, *([network] if network else [])]
    return {"annotations": {CONTAINER_TYPE: kind, **annotations}, "linux": {"namespaces": namespaces}}


def edited(about: dict[str, Any]) -> dict[str, Any]:
    return with_notifications(about, LISTENER, lambda path: path == NODES_NETWORK["path"])


def test_a_container_without_a_profile_gets_one_that_allows_all_else() -> None:
    profile = edited(bundle(network=POD_NETWORK))["linux"]["seccomp"]
    assert profile["defaultAction"] == ALLOW
    assert profile["listenerPath"] == LISTENER
    assert profile["syscalls"] == [{"names": sorted(CALLS), "action": NOTIFY}]


@pytest.mark.parametrize(
    "other",
    [
        bundle("sandbox", network=POD_NETWORK),
        bundle(network=NODES_NETWORK),  # hostNetwork
        bundle(),
        bundle(network={"type": "network"}),
        bundle(network=POD_NETWORK, **{ANNOTATION: "false"}),
    ],
)
def test_others_are_left_as_they_are(other: dict[str, Any]) -> None:
    assert edited(other) == other


def test_what_a_profile_allows_is_caught_and_what_it_denies_is_denied() -> None:
    rules = [
        {"names": ["read", "connect", "accept4", "listen"], "action": ALLOW},
        {"names": ["accept"], "action": "SCMP_ACT_ERRNO"},
        {"names": ["getsockname"], "action": ALLOW, "args": [{"index": 0, "value": 3, "op": "SCMP_CMP_EQ"}]},
    ]
    found = catching({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules}, LISTENER)
    assert found
    assert found["syscalls"] == [
        {"names": ["read"], "action": ALLOW},
        *rules[1:],
        {"names": ["accept4", "connect", "listen"], "action": NOTIFY},
    ]


def test_a_rule_of_which_nothing_is_left_goes() -> None:
    found = catching({"defaultAction": ALLOW, "syscalls": [{"names": ["connect"], "action": ALLOW}]}, LISTENER)
    assert found
    assert [rule["action"] for rule in found["syscalls"]] == [NOTIFY]


@pytest.mark.parametrize(
    "profile",
    [
        {"defaultAction": NOTIFY},
        {"defaultAction": ALLOW, "listenerPath": "/run/another.sock"},
        {"defaultAction": ALLOW, "syscalls": [{"names": ["mount"], "action": NOTIFY}]},
        {"defaultAction": ALLOW, "syscalls": [{"names": ["connect"], "action": "SCMP_ACT_ERRNO"}]},
        {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": ALLOW}]},
    ],
)
def test_profiles_that_have_to_stay(profile: dict[str, Any]) -> None:
    assert catching(profile, LISTENER) is None
