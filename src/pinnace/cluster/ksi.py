"""The words of KSI (Kubernetes in Slurm with kind), so that its scripts run unchanged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pinnace.kube.client import Api

if TYPE_CHECKING:
    from pinnace.cluster.cluster import Cluster

ACCOUNT = "admin-user"
NAMESPACE = "/api/v1/namespaces/kube-system/serviceaccounts"


def environment(cluster: Cluster, port: int) -> dict[str, str]:
    """What a script of KSI's finds. The token is in the environment alone: never on a command line or in a log."""
    api = Api(cluster.kubeconfig)
    api.create(NAMESPACE, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _binding())
    token = api.request("POST", f"{NAMESPACE}/{ACCOUNT}/token", {"spec": {"expirationSeconds": 86400}})
    document = json.loads(cluster.kubeconfig.read_text())
    return {
        "K8S_CLUSTER_NAME": document["current-context"],
        "K8S_CLUSTER_API": document["clusters"][0]["cluster"]["server"],
        "K8S_CLUSTER_API_TOKEN": token["status"]["token"],
        "K8S_PORT": str(port),
    }


def _binding() -> dict[str, object]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system"}],
    }
