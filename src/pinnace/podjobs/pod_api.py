"""What the controller and the nodes write to the API about pods that are Slurm jobs, and about their nodes.

A pod may be deleted at any moment, and another one of its name created. Requests carry the pod's uid, with which the
API refuses them for the other one (409), and a pod or node that is gone (404) is no error.
"""

from __future__ import annotations

import contextlib
import http
import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pinnace.errors import ApiError
from pinnace.kube import nodes, pods
from pinnace.kube.client import ignoring
from pinnace.kube.events import create_event

if TYPE_CHECKING:
    from pinnace.kube.client import Api

    Object = dict[str, Any]

COMPONENT = "pinnace-provisioner"
GONE = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)
MAX_OWNERS = 4  # of the chain of controllers that is followed up from a pod
PLURALS = {"ReplicaSet": "replicasets", "Deployment": "deployments", "StatefulSet": "statefulsets", "Job": "jobs",
           "CronJob": "cronjobs", "Workflow": "workflows"}  # fmt: skip
GROUP_VERSION = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9]{1,63}")  # none of these kinds is of the core group
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")

log = logging.getLogger("pinnace.podjobs")


class PodApi:
    """Requests about pods and their nodes, on one connection."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def annotate(self, pod: Object, annotations: dict[str, str | None]) -> Object | None:
        """Set a pod's annotations. The pod as it is then; None if it is gone."""
        body = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": annotations}}
        with ignoring(*GONE):
            changed: Object = self.api.patch(pods.path(pod), body)
            return changed
        return None

    def set_status(self, pod: Object, status: Object) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        with ignoring(*GONE):
            self.api.strategic_patch(f"{pods.path(pod)}/status", body)

    def current(self, pod: Object) -> Object | None:
        """The pod as the API has it now; None if it is gone."""
        found: Object | None = self.api.get_or_none(pods.path(pod))
        return found if found and found["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def delete_now(self, pod: Object) -> None:
        """Delete a pod without a grace period: no kubelet is left to give it one."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        with ignoring(*GONE):
            self.api.request("DELETE", pods.path(pod), body)

    def evict(self, pod: Object) -> None:
        """Evict a pod as a drain does. A PodDisruptionBudget may refuse it for now; no refusal stops the caller."""
        metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        try:
            with ignoring(*GONE, http.HTTPStatus.TOO_MANY_REQUESTS):
                self.api.request("POST", f"{pods.path(pod)}/eviction", body)
        except ApiError as error:
            log.warning("%s/%s is not evicted: %s", metadata["namespace"], metadata["name"], error)

    def event(self, pod: Object, severity: str, reason: str, message: str) -> None:
        """Show a message on a pod. Nothing depends on it, and the pod's namespace may be going."""
        with contextlib.suppress(ApiError):
            create_event(self.api, pod, "Pod", component=COMPONENT, severity=severity, reason=reason, message=message)

    def owners(self, pod: Object) -> list[Object]:
        """The controllers of a pod, the nearest first: a ReplicaSet and its Deployment, a Job and its CronJob."""
        found: list[Object] = []
        thing = pod
        while len(found) < MAX_OWNERS and (reference := pods.controller_of(thing)):
            where = owner_path(reference, pod["metadata"]["namespace"])
            if where is None:
                break
            try:
                thing = {"kind": reference["kind"], "metadata": self.api.get(where)["metadata"]}
            except ApiError:
                break
            found.append(thing)
        return found

    def set_node_status(self, name: str, status: Object) -> None:
        with ignoring(*GONE):
            self.api.strategic_patch(f"{nodes.path(name)}/status", {"status": status})

    def patch_node(self, name: str, body: Object) -> None:
        with ignoring(*GONE):
            self.api.patch(nodes.path(name), body)

    def delete_node(self, name: str) -> None:
        with ignoring(*GONE):
            self.api.request("DELETE", nodes.path(name))


def owner_path(owner: Object, namespace: str) -> str | None:
    """Where the API has an owner, if it is of a kind that we look at. Tenants write what they like into references."""
    group_version, kind, name = owner["apiVersion"], owner["kind"], owner["name"]
    if kind not in PLURALS or not GROUP_VERSION.fullmatch(group_version) or not NAME.fullmatch(name):
        return None
    return f"/apis/{quote(group_version)}/namespaces/{quote(namespace)}/{PLURALS[kind]}/{quote(name, safe='')}"
