from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from pinnace.cluster.service_accounts import account_objects, issue_token, kubeconfig_for, require_restricted
from pinnace.controlplane.pki import kubeconfig
from pinnace.errors import ApiError, ClusterError, PinnaceError
from pinnace.kube.client import Api
from pinnace.network.addresses import Ranges
from pinnace.spec import ClusterSpec, Restriction


class FakeApi(Api):
    """Knows namespaces, and takes everything else."""

    def __init__(self, **labels: dict[str, str]) -> None:
        self.labels, self.asked = labels, list[tuple[str, str]]()

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
        assert content_type == "application/json"
        self.asked.append((method, path))
        if method == "GET":
            name = path.removeprefix("/api/v1/namespaces/")
            if name not in self.labels:
                raise ApiError(404, name)
            return {"metadata": {"labels": self.labels[name]}}
        return {"status": {"token": "secret"}} if path.endswith("/token") else body


def spec(restriction: Restriction | None) -> ClusterSpec:
    ranges = Ranges.within(IPv4Network("10.128.0.0/16"))
    return ClusterSpec(name="mine", directory=Path("/x"), ranges=ranges, binaries={}, restriction=restriction)


def test_who_may_create_pods_is_issue_tokento_restricted_clusters_alone() -> None:
    require_restricted(spec(Restriction(level="restricted")), "edit")
    require_restricted(spec(None), "view")
    with pytest.raises(ClusterError, match="has all your rights"):
        require_restricted(spec(None), "edit")


def test_a_role_in_one_namespace() -> None:
    binding = account_objects("bob", "team", "edit")[-1]
    assert binding[0].endswith("/namespaces/team/rolebindings")
    assert binding[1]["roleRef"]["name"] == "edit"
    assert binding[1]["subjects"] == [{"kind": "ServiceAccount", "name": "bob", "namespace": "team"}]


def test_the_token_comes_last() -> None:
    api = FakeApi()
    assert issue_token(api, "bob", namespace="team", role="edit", seconds=3600) == "secret"
    assert api.asked[-1] == ("POST", "/api/v1/namespaces/team/serviceaccounts/bob/token")


@pytest.mark.parametrize(
    ("name", "namespace", "role", "seconds"),
    [
        ("bob/../x", "team", "edit", 3600),
        ("bob", "team/x", "edit", 3600),
        ("bob", "kube-system", "edit", 3600),
        ("bob", "team", "cluster-admin", 3600),
        ("bob", "team", "edit", 60),
        ("bob", "open", "edit", 3600),
    ],
)
def test_what_is_not_given(name: str, namespace: str, role: str, seconds: float) -> None:
    api = FakeApi(open={"pod-security.kubernetes.io/enforce": "privileged"})
    with pytest.raises(PinnaceError):
        issue_token(api, name, namespace=namespace, role=role, seconds=seconds)
    assert not [path for method, path in api.asked if method == "POST"]


def test_a_kubeconfig_without_the_users_own_credentials() -> None:
    own = kubeconfig(name="pinnace-x", server="https://n1:1", ca="Q0E=", certificate="Q1JU", key="S0VZ")
    given = kubeconfig_for(own, "bob", "team", "secret")
    assert "S0VZ" not in json.dumps(given)
    assert "Q1JU" not in json.dumps(given)
    assert given["users"] == [{"name": "bob", "user": {"token": "secret"}}]
    assert given["contexts"][0]["context"] == {"cluster": "pinnace-x", "user": "bob", "namespace": "team"}
