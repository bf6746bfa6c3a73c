"""How others are let into a cluster: a service account with a role in one namespace, and a kubeconfig with its token.

A token can be taken back by deleting the account; a certificate could not.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import make_object
from pinnace.controlplane.podsecurity import ENFORCE
from pinnace.errors import ClusterError, UsageError
from pinnace.kube.client import Api

if TYPE_CHECKING:
    from pinnace.cluster.cluster import Cluster
    from pinnace.spec import ClusterSpec

ROLES = ("view", "edit", "admin")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MIN_TOKEN_SECONDS = 600.0  # the API issues no tokens for less
RBAC = "rbac.authorization.k8s.io"


def require_restricted(spec: ClusterSpec, role: str) -> None:
    """Fail where a pod, and so whoever may create one, has all rights of the cluster's user."""
    if spec.restriction is None and role != "view":
        raise ClusterError(
            f"the cluster {spec.name} is not restricted: whoever may create a pod there has all your rights",
            hint="Start one for others with `pinnace up --restricted`; or let them look only, with --role view.",
        )


def account_objects(name: str, namespace: str, role: str) -> list[tuple[str, dict[str, Any]]]:
    """The namespace, the account, and what gives it the role there."""
    where = f"namespaces/{namespace}"
    binding = make_object(f"{RBAC}/v1", "RoleBinding", f"{name}-{role}") | {
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    return [
        ("/api/v1/namespaces", make_object("v1", "Namespace", namespace)),
        (f"/api/v1/{where}/serviceaccounts", make_object("v1", "ServiceAccount", name)),
        (f"/apis/{RBAC}/v1/{where}/rolebindings", binding),
    ]


def issue_kubeconfig(cluster: Cluster, name: str, *, namespace: str, role: str, seconds: float) -> dict[str, Any]:
    """A kubeconfig of a cluster for somebody else, with a role in one namespace."""
    require_restricted(cluster.directory.spec, role)
    token = issue_token(Api(cluster.kubeconfig), name, namespace=namespace, role=role, seconds=seconds)
    own = json.loads(cluster.kubeconfig.read_text())
    if server := cluster.api_address:  # the tunnel, if there is one, serves the user alone
        own["clusters"][0]["cluster"]["server"] = server
    return kubeconfig_for(own, name, namespace, token)


def issue_token(api: Api, name: str, *, namespace: str, role: str, seconds: float) -> str:
    """Create the account, if it is not there, and give a token for it."""
    for what, text in (("name", name), ("namespace", namespace)):
        if not NAME.fullmatch(text):
            raise UsageError(f"{text!r} cannot be a {what}", hint="Use small letters, digits and dashes, at most 63.")
    if namespace.startswith("kube-"):
        raise UsageError(f"the namespace {namespace} is the system's own", hint="Choose another --namespace.")
    if role not in ROLES:
        raise UsageError(f"there is no role {role!r} to give", hint=f"One of {', '.join(ROLES)}.")
    if seconds < MIN_TOKEN_SECONDS:
        raise UsageError(f"a token is valid for {MIN_TOKEN_SECONDS / 60:.0f} minutes at least")
    if is_privileged(api, namespace) and role != "view":
        raise ClusterError(
            f"the namespace {namespace} is privileged: whoever may create a pod there has all your rights",
            hint=f"Choose another --namespace, or take off its label {ENFORCE}.",
        )
    for path, body in account_objects(name, namespace, role):
        api.create(path, body)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(seconds)},
    }
    made = api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
    return str(made["status"]["token"])


def is_privileged(api: Api, namespace: str) -> bool:
    found = api.get_or_none(f"/api/v1/namespaces/{namespace}")
    return bool(found and found["metadata"].get("labels", {}).get(ENFORCE) == "privileged")


def kubeconfig_for(own: dict[str, Any], name: str, namespace: str, token: str) -> dict[str, Any]:
    """A kubeconfig for somebody else: the place of the API from the user's ``own``, and none of its credentials."""
    cluster = own["clusters"][0]
    context = {"cluster": cluster["name"], "user": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": cluster["name"], "context": context}],
        "current-context": cluster["name"],
    }
