"""metrics-server, for ``kubectl top`` and autoscaling: its command, and the objects that register it with the API.

Nothing depends on it, so it starts after everything else. The APIService is created last: while its server does not
answer, every client's discovery fails, and with it the deletion of namespaces.
"""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.bootstrap import START_LIMIT, create_all
from pinnace.controlplane.objects import Object, binding, make_object
from pinnace.kube.client import Api
from pinnace.spec import METRICS_DELAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.spec import NodeSpec

NAME = "metrics-server"
USER = "pinnace:metrics-server"
PORT = 10240
USAGE_PORT = 10241  # where nodes serve the usage of their containers, see node.services.usage
USAGE_PATH = "/metrics/resource"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def metrics_server_argv(node: NodeSpec) -> list[str]:
    kubeconfig = node.secret(f"{NAME}.kubeconfig")
    return [
        node.binary("metrics-server"),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={node.address}",
        f"--secure-port={PORT}",
        f"--tls-cert-file={node.secret(f'{NAME}.crt')}",
        f"--tls-private-key-file={node.secret(f'{NAME}.key')}",
        f"--kubelet-port={USAGE_PORT}",
        "--kubelet-preferred-address-types=InternalIP",
        "--metric-resolution=10s",
        "--kubelet-request-timeout=5s",  # has to be shorter than the resolution
    ]


def roles() -> list[tuple[str, Object]]:
    """The roles of upstream's manifest, without the permission to query kubelets."""
    reader = make_object("rbac.authorization.k8s.io/v1", "ClusterRole", "system:aggregated-metrics-reader") | {
        "rules": [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}]
    }
    reader["metadata"]["labels"] = {
        f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("view", "edit", "admin")
    }
    own = make_object("rbac.authorization.k8s.io/v1", "ClusterRole", f"system:{NAME}") | {
        "rules": [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}]
    }
    delegator = binding(f"{NAME}:system:auth-delegator", role="system:auth-delegator", user=USER)
    authentication = binding(f"{NAME}-auth-reader", role="extension-apiserver-authentication-reader", user=USER)
    authentication |= {"kind": "RoleBinding", "roleRef": authentication["roleRef"] | {"kind": "Role"}}
    return [
        (f"{RBAC}/clusterroles", reader),
        (f"{RBAC}/clusterroles", own),
        (f"{RBAC}/clusterrolebindings", binding(f"system:{NAME}", role=f"system:{NAME}", user=USER)),
        (f"{RBAC}/clusterrolebindings", delegator),
        (f"{RBAC}/namespaces/kube-system/rolebindings", authentication),
    ]


def service(address: str) -> list[tuple[str, Object]]:
    """A Service without pods: metrics-server runs beside the control plane."""
    port = {"name": "https", "port": PORT, "protocol": "TCP"}
    labels = {"kubernetes.io/service-name": NAME}
    return [
        (
            "/api/v1/namespaces/kube-system/services",
            make_object("v1", "Service", NAME, labels={"k8s-app": NAME})
            | {"spec": {"ports": [port | {"port": 443, "targetPort": PORT}]}},
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            make_object("discovery.k8s.io/v1", "EndpointSlice", NAME, labels=labels)
            | {
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
                "ports": [port],
            },
        ),
    ]


def api_service(ca: bytes) -> list[tuple[str, Object]]:
    spec: dict[str, Any] = {
        "service": {"name": NAME, "namespace": "kube-system"},
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "caBundle": base64.b64encode(ca).decode(),
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    body = make_object("apiregistration.k8s.io/v1", "APIService", "v1beta1.metrics.k8s.io") | {"spec": spec}
    return [("/apis/apiregistration.k8s.io/v1/apiservices", body)]


def install(node: NodeSpec, is_serving: Callable[[], bool]) -> None:
    """Create the roles, and everything else once metrics-server is serving."""
    time.sleep(METRICS_DELAY)
    api = Api(node.cluster.secrets / "admin.kubeconfig")
    ca = Path(node.secret("ca.crt")).read_bytes()
    create_all(api, roles(), until=time.monotonic() + START_LIMIT)
    while not is_serving():
        time.sleep(0.5)
    create_all(api, [*service(node.address), *api_service(ca)], until=time.monotonic() + START_LIMIT)
