"""The Kubernetes objects that every cluster starts with, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinnace.network.addresses import Ranges

Object = dict[str, Any]


def default_service_account() -> list[tuple[str, Object]]:
    """What the controller-manager would create some seconds later, and without which no pod is admitted."""
    return [("/api/v1/namespaces/default/serviceaccounts", make_object("v1", "ServiceAccount", "default"))]


def root_certificate(ca: str) -> list[tuple[str, Object]]:
    """Likewise: every pod mounts it."""
    body = make_object("v1", "ConfigMap", "kube-root-ca.crt") | {"data": {"ca.crt": ca}}
    return [("/api/v1/namespaces/default/configmaps", body)]


def dns_objects(ranges: Ranges) -> list[tuple[str, Object]]:
    """The DNS Service and its endpoint: CoreDNS runs beside the control plane, not in a pod."""
    labels = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return [
        (
            "/api/v1/namespaces/kube-system/services",
            make_object("v1", "Service", "kube-dns", labels=labels)
            | {"spec": {"clusterIP": str(ranges.dns), "ports": ports}},
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            make_object(
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
            make_object("rbac.authorization.k8s.io/v1", "ClusterRole", "pinnace:coredns")
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
            binding("pinnace:coredns", role="pinnace:coredns", user="pinnace:coredns"),
        ),
    ]


def binding(name: str, *, role: str, user: str) -> Object:
    """What gives a user a role in the whole cluster."""
    group = {"apiGroup": "rbac.authorization.k8s.io"}
    return make_object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name) | {
        "roleRef": {**group, "kind": "ClusterRole", "name": role},
        "subjects": [{**group, "kind": "User", "name": user}],
    }


def make_object(version: str, kind: str, name: str, *, labels: dict[str, str] | None = None) -> Object:
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
