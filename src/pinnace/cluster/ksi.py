"""The variables of KSI (Kubernetes in Slurm with kind), so that its scripts run unchanged."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from pinnace.kube.client import Api

if TYPE_CHECKING:
    from pinnace.cluster.cluster import Cluster

ACCOUNT = "admin-user"
SERVICE_ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
NODE_PORTS = range(30000, 32768)  # Kubernetes' own default


def random_node_port() -> int:
    """A NodePort for a cluster that is not there yet; its nodes say so if a host uses the port already."""
    return secrets.choice(NODE_PORTS)


def environment(cluster: Cluster, port: int) -> dict[str, str]:
    """The variables that KSI's scripts expect. The token is in no other place: no command line and no log has it."""
    api = Api(cluster.kubeconfig)
    api.create(SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _binding())
    token = api.request("POST", f"{SERVICE_ACCOUNTS}/{ACCOUNT}/token", {"spec": {"expirationSeconds": 86400}})
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
