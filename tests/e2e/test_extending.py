"""The API as others extend it: webhooks, aggregated APIs, custom resources; both answered from a pod."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from e2e.namespaces import Namespace, Object, config_map, namespace
from e2e.serving import server
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from e2e.conftest import Kubectl

pytestmark = pytest.mark.bed

NAME = "extending"
WEBHOOK = """
import base64, json
def answer(path, body, headers):
    review = json.loads(body)
    request = review["request"]
    response = {"uid": request["uid"], "allowed": True}
    if path.startswith("/validate"):
        response["allowed"] = "forbidden" not in (request["object"].get("data") or {})
        response["status"] = {"message": "the webhook has seen something forbidden", "code": 418}
    else:
        patch = [{"op": "add", "path": "/data/stamped", "value": "by the webhook"}]
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return 200, {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
"""
AGGREGATED = """
VERSION = "boats.example.com/v1"
def answer(path, body, headers):
    path = path.split("?")[0].rstrip("/")
    if path == "/apis/boats.example.com/v1":
        return 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": [
            {"name": "boats", "singularName": "boat", "namespaced": True, "kind": "Boat", "verbs": ["get", "list"]}]}
    if path.endswith("/boats"):
        boat = {"apiVersion": VERSION, "kind": "Boat", "metadata": {"name": "pinnace", "namespace": "extending"},
                "for": headers.get("X-Remote-User")}
        return 200, {"kind": "BoatList", "apiVersion": VERSION, "metadata": {}, "items": [boat]}
    return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
"""
CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "sails.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "sails", "singular": "sail", "kind": "Sail", "shortNames": ["sl"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.count",
                                                         "statusReplicasPath": ".status.count"}},
                "additionalPrinterColumns": [{"name": "Count", "type": "integer", "jsonPath": ".spec.count"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "description": "What the sail should be.",
                                "required": ["count"],
                                "properties": {
                                    "count": {"type": "integer", "description": "How many there are."},
                                    "most": {"type": "integer", "default": 5},
                                },
                                "x-kubernetes-validations": [
                                    {"rule": "self.count <= self.most", "message": "more sails than the mast carries"}
                                ],
                            },
                            "status": {"type": "object", "properties": {"count": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}  # fmt: skip


def sail(name: str, count: int) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Sail", "metadata": {"name": name}, "spec": {"count": count}}


@pytest.fixture(scope="module")
def here(cluster: Kubectl) -> Iterator[Namespace]:
    with namespace(cluster, NAME) as here:
        webhook, webhook_bundle = server("webhook", NAME, WEBHOOK, node="n2")
        aggregated, api_bundle = server("boats", NAME, AGGREGATED, node="n2")
        here.create(*webhook, *aggregated, CRD)
        here.ready("webhook", "boats")
        here.create(hook("Validating", webhook_bundle), hook("Mutating", webhook_bundle), api_service(api_bundle))
        yield here
        for what in ("validatingwebhookconfiguration/tests", "mutatingwebhookconfiguration/tests",
                     "apiservice/v1.boats.example.com", "crd/sails.example.com"):  # fmt: skip
            here("delete", what)


def hook(kind: str, bundle: str) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "tests"},
        "webhooks": [
            {
                "name": "tests.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 20,
                "failurePolicy": "Fail",
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAME}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                           "resources": ["configmaps"]}],
                "clientConfig": {
                    "caBundle": bundle,
                    "service": {"name": "webhook", "namespace": NAME,
                                "path": "/validate" if kind == "Validating" else "/mutate"},
                },
            }
        ],
    }  # fmt: skip


def api_service(bundle: str) -> Object:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1.boats.example.com"},
        "spec": {
            "group": "boats.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
            "caBundle": bundle, "service": {"name": "boats", "namespace": NAME},
        },
    }  # fmt: skip


def test_webhooks_in_a_pod_change_and_refuse(here: Namespace) -> None:
    def created(name: str, **data: str) -> subprocess.CompletedProcess[str]:
        """Webhooks that the API knows, and does not reach yet, have everything refused."""
        here("delete", "configmap", name, "--ignore-not-found")
        return here.run("create", "-f", here.file(config_map(name, **data)))

    def stamped() -> bool:
        made = created("fine", colour="red").returncode == 0
        return made and "stamped" in here.json("get", "configmap", "fine")["data"]

    def refused() -> bool:
        answer = created("bad", forbidden="fruit")
        return answer.returncode != 0 and "the webhook has seen something forbidden" in answer.stderr

    wait_until("the webhooks to be known", stamped, limit=60)
    assert here.json("get", "configmap", "fine")["data"] == {"colour": "red", "stamped": "by the webhook"}
    wait_until("the refusal", refused, limit=60)


def test_an_api_in_a_pod_is_part_of_the_api(here: Namespace) -> None:
    here.wait("apiservice/v1.boats.example.com", "condition=Available")
    boats = json.loads(here("get", "--raw", f"/apis/boats.example.com/v1/namespaces/{NAME}/boats"))["items"]
    assert [boat["metadata"]["name"] for boat in boats] == ["pinnace"]
    assert boats[0]["for"] == "pinnace-admin", "the server knows on whose behalf it is asked"
    resources = ("api-resources", "--api-group=boats.example.com")
    wait_until("its kind to be known", lambda: "boats" in here(*resources, code=None), limit=60)


def test_custom_resources_are_checked_explained_and_scaled(here: Namespace) -> None:
    here.wait("crd/sails.example.com", "condition=Established")
    here.create(sail("main", 3))
    assert here.json("get", "sail", "main")["spec"] == {"count": 3, "most": 5}
    assert "more sails than the mast carries" in here.refused(sail("many", 9))
    assert "unknown field" in here.refused(sail("odd", 1) | {"surprise": True})
    explain = ("explain", "sails.spec.count")
    wait_until("its words", lambda: "How many there are." in here(*explain, code=None), limit=60)
    here("scale", "sail/main", "--replicas=2")
    assert here("get", "sl", "main", "--no-headers").split()[:2] == ["main", "2"]
