"""The Kubernetes objects that every cluster starts with, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinnace.network.addresses import Ranges

    Object = dict[str, Any]


def default_service_account() -> list[tuple[str, Object]]:
    """What the controller-manager would create some seconds later, and without which no pod is admitted."""
    return [("/api/v1/namespaces/default/serviceaccounts", _object("v1", "ServiceAccount", "default"))]


def root_certificate(ca: str) -> list[tuple[str, Object]]:
    """Likewise: every pod mounts it."""
    body = _object("v1", "ConfigMap", "kube-root-ca.crt") | {"data": {"ca.crt": ca}}
    return [("/api/v1/namespaces/default/configmaps", body)]


def dns_objects(ranges: Ranges) -> list[tuple[str, Object]]:
    """The DNS Service and its endpoint: CoreDNS runs beside the control plane, not in a pod."""
    labels = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return [
        (
            "/api/v1/namespaces/kube-system/services",
            _object("v1", "Service", "kube-dns", labels=labels)
            | {"spec": {"clusterIP": str(ranges.dns), "ports": ports}},
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            _object(
                "discovery.k8s.io/v1", "EndpointSlice", "kube-dns", labels={"kubernetes.io/service-name": "kube-dns"}
            )
            | {
                "addressType": "IPv4",
                "endpoints": [{"addresses": [str(ranges.node(0))], "conditions": {"ready": True}}],
                "ports": ports,
            },
        ),
    ]


def coredns_role() -> list[tuple[str, Object]]:
    """What CoreDNS may see."""
    return [
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            _object("rbac.authorization.k8s.io/v1", "ClusterRole", "pinnace:coredns")
            | {
                "rules": [
                    {
                        "apiGroups": [""],
                        "resources": ["endpoints", "services", "pods", "namespaces"],
                        "verbs": ["list", "watch"],
                    },
                    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
                ]
            },
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            _object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "pinnace:coredns")
            | {
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pinnace:coredns"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "pinnace:coredns"}],
            },
        ),
    ]


def _object(version: str, kind: str, name: str, *, labels: dict[str, str] | None = None) -> Object:
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
