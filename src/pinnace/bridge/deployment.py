"""The bridge as a Deployment in any cluster: everything it needs there, with the least rights, as data.

It reaches Slurm through slurmrestd, with the Secret of each namespace; Slurm's command line is only for a bridge that
its user runs on the site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.bridge.crds import KINDS, SLURMJOB, definitions
from pinnace.kube.leader_election import CLUSTER_WIDE_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    Object = dict[str, Any]

NAME = "pinnace-bridge"
RBAC = "rbac.authorization.k8s.io"
USER = 65532  # nobody's
LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]}


def rules(*, pods: bool) -> list[Object]:
    """Secrets and ConfigMaps are read by name, never listed."""
    granted = [
        rule(sorted({kind.group for kind in KINDS}), [kind.plural for kind in KINDS], "get", "list", "watch"),
        rule(sorted({kind.group for kind in KINDS}), [f"{kind.plural}/status" for kind in KINDS], "patch"),
        rule([SLURMJOB.group], [SLURMJOB.plural], "create", "patch", "delete"),
        rule([kind.group for kind in KINDS], [f"{kind.plural}/finalizers" for kind in KINDS], "update"),
        rule([""], ["secrets"], "get"),
        rule([""], ["configmaps"], "get", "create", "patch"),
    ]
    if pods:
        granted += [rule([""], ["pods"], "get", "create"), rule([""], ["pods/log"], "get")]
    return granted


def rule(groups: Sequence[str], resources: Sequence[str], *verbs: str) -> Object:
    return {"apiGroups": list(dict.fromkeys(groups)), "resources": list(dict.fromkeys(resources)), "verbs": list(verbs)}


def role(namespace: str, granted: list[Object]) -> list[Object]:
    """A role and its binding; in a namespace, or everywhere without one."""
    scope = "" if namespace else "Cluster"
    where = {"namespace": namespace} if namespace else {}
    metadata = {"name": NAME, **where}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAME}
    reference = {"apiGroup": RBAC, "kind": f"{scope}Role", "name": NAME}
    head = {"apiVersion": f"{RBAC}/v1", "metadata": metadata}
    return [
        {**head, "kind": f"{scope}Role", "rules": granted},
        {**head, "kind": f"{scope}RoleBinding", "roleRef": reference, "subjects": [subject]},
    ]


def deployment(image: str, arguments: Sequence[str]) -> Object:
    container = {
        "name": "bridge",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["pinnace", "bridge", "--in-pod", "--no-install", *arguments],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the pod's own
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }
    identity = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    pod = {
        "serviceAccountName": NAME,
        "securityContext": identity,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    labels = {"app": NAME}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAME, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def manifest(image: str, namespaces: Sequence[str] = (), arguments: Sequence[str] = ()) -> list[Object]:
    """All of it, in the order in which it is applied. For some namespaces only, it has no rights in others."""
    words = [word for namespace in namespaces for word in ("--namespace", namespace)]
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME, "labels": labels}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAME}}
    granted = rules(pods="--image" in arguments)
    if namespaces:
        roles = [found for namespace in namespaces for found in role(namespace, [*granted, LEASES])]
    else:
        roles = [*role("", granted), *role(CLUSTER_WIDE_NAMESPACE, [LEASES])]
    return [*definitions(), home, account, *roles, deployment(image, [*words, *arguments])]
