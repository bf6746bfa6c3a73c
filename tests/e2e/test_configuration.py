"""What a pod is told: files and variables from the API, and a token to speak to it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from e2e.namespaces import Namespace, Object, config_map, image, namespace, once, pod
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NAME = "configuration"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
RBAC = "rbac.authorization.k8s.io"


def field(path: str) -> Object:
    return {"fieldRef": {"fieldPath": path}}


def objects() -> list[Object]:
    volumes = [
        {"name": "map", "configMap": {"name": "settings"}},
        {"name": "secret", "secret": {"secretName": "password", "defaultMode": 0o400}},
        {"name": "about", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}}]}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "settings"}},
            {"secret": {"name": "password"}},
            {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}]}},
    ]  # fmt: skip
    reader = {
        "env": [
            {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
            {"name": "POD", "valueFrom": field("metadata.name")},
            {"name": "NODE", "valueFrom": field("spec.nodeName")},
            {"name": "HOST_IP", "valueFrom": field("status.hostIP")},
            {"name": "POD_IP", "valueFrom": field("status.podIP")},
            {"name": "GREETING", "value": "hello $(COLOUR)"},
        ],
        "envFrom": [{"secretRef": {"name": "password"}, "prefix": "S_"}],
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "16Mi"}},
        "volumeMounts": [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes],
    }
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]}  # fmt: skip
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": "reader"},
               "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "reader"},
               "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": NAME}]}  # fmt: skip
    return [
        config_map("settings", colour="red"),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"}, "stringData": {"word": "xyzzy"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}},
        role,
        binding,
        pod("told", container=reader, nodeName="n2", volumes=volumes),
        pod("asks", of="nettools", nodeName="n2", serviceAccountName="reader"),
        pod("mute", nodeName="n2", automountServiceAccountToken=False),
        once("present", "echo here", container={"imagePullPolicy": "IfNotPresent"}),
        once("pulls", "echo pulled", container={"imagePullPolicy": "Always"}),
        once("absent", "echo", container={"imagePullPolicy": "Never", "image": image("no-such-image")}),
    ]


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, NAME) as here:
        here.create(*objects())
        here.ready("told", "asks", "mute")
        yield here


def test_variables_come_from_everywhere(here: Namespace) -> None:
    status = here.json("get", "pod", "told")["status"]
    said = here.sh("told", "echo $COLOUR/$POD/$NODE/$HOST_IP/$POD_IP/$GREETING/$S_word").strip()
    assert said == f"red/told/n2/{status['hostIP']}/{status['podIP']}/hello red/xyzzy"


def test_files_come_from_everywhere(here: Namespace) -> None:
    assert here.sh("told", "cat /map/colour /secret/word /all/colour /all/word /about/cpu") == "redxyzzyredxyzzy1"
    assert here.sh("told", "stat -L -c %a /secret/word").strip() == "400"


def test_changes_reach_a_running_pod(here: Namespace) -> None:
    here.create(
        config_map("settings", colour="green", more="of it"),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"}, "stringData": {"word": "plugh"}},
    )
    here("label", "pod", "told", "app=changed", "--overwrite")

    def changed() -> bool:
        return here.sh("told", "cat /map/* /secret/word /all/colour; grep -c changed /about/labels", code=None).split(
            "\n"
        ) == ["greenof itplughgreen1", ""]

    wait_until("the new content", changed, limit=60)


def ask(here: Namespace, path: str, token: str = f"{SERVICE_ACCOUNT}/token") -> tuple[int, str]:
    """The API's answer to a pod."""
    command = (
        f'curl -sS -w "\\n%{{http_code}}" --cacert {SERVICE_ACCOUNT}/ca.crt -H "Authorization: Bearer $(cat {token})" '
        f"https://kubernetes.default.svc{path}"
    )
    body, _, code = here.sh("asks", command).rpartition("\n")
    return int(code), body


def test_a_pods_token_opens_what_its_role_allows_and_no_more(here: Namespace) -> None:
    code, body = ask(here, f"/api/v1/namespaces/{NAME}/pods")
    assert code == 200
    assert {"told", "asks"} <= {item["metadata"]["name"] for item in json.loads(body)["items"]}
    for path in (f"/api/v1/namespaces/{NAME}/secrets", "/api/v1/namespaces/default/pods", "/api/v1/nodes"):
        code, body = ask(here, path)
        assert code == 403
        assert f"system:serviceaccount:{NAME}:reader" in body


def test_a_token_for_others_is_not_for_the_api(here: Namespace) -> None:
    payload = here.sh("told", "cat /all/token").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["aud"] == ["vault"]
    assert claims["sub"] == f"system:serviceaccount:{NAME}:default"
    assert claims["kubernetes.io"]["pod"]["name"] == "told"
    assert claims["kubernetes.io"]["node"]["name"] == "n2"
    token = here.sh("told", "cat /all/token").strip()
    here.sh("asks", f"echo {token} > /tmp/token")
    assert ask(here, "/api/v1/nodes", "/tmp/token")[0] == 401


def test_a_pod_may_do_without_a_token(here: Namespace) -> None:
    here.sh("mute", f"test ! -e {SERVICE_ACCOUNT}")


def test_the_pull_policies(here: Namespace) -> None:
    """What was loaded is there, and can be pulled too: from the cluster's own registry."""
    assert here.ended("present") == "here\n"
    assert here.ended("pulls") == "pulled\n"

    def reason(name: str) -> str:
        statuses = here.json("get", "pod", name)["status"].get("containerStatuses", [{}])
        return str(statuses[0].get("state", {}).get("waiting", {}).get("reason"))

    wait_until("the refusal", lambda: reason("absent") == "ErrImageNeverPull", limit=60)
