"""The Kubernetes objects that every cluster starts with, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.spec import API_PORT, HEAD

if TYPE_CHECKING:
    from pinnace.network.addresses import Ranges

Object = dict[str, Any]

SHARED = "pinnace.dev/shared"  # the provisioners of the storage classes
SCRATCH = "pinnace.dev/scratch"
HAS_CGROUPS = "pinnace.dev/cgroups"  # the label of nodes whose containers have cgroups
HOST_NETWORK = "host-network"  # the RuntimeClass, and containerd's runtime handler


def default_service_account() -> list[tuple[str, Object]]:
    """The default ServiceAccount: no pod is admitted without it, and the controller-manager would create it later."""
    return [("/api/v1/namespaces/default/serviceaccounts", make_object("v1", "ServiceAccount", "default"))]


def root_certificate(ca: str) -> list[tuple[str, Object]]:
    """The ConfigMap of the CA, for the same reason: every pod mounts it."""
    body = make_object("v1", "ConfigMap", "kube-root-ca.crt") | {"data": {"ca.crt": ca}}
    return [("/api/v1/namespaces/default/configmaps", body)]


def api_objects(ranges: Ranges) -> list[tuple[str, Object]]:
    """The Service of the API and its endpoint, as the API server itself makes them when all of its hooks are done.

    Pods may begin before that (see ``early_health``), and have its address in their environment.
    """
    labels = {"component": "apiserver", "provider": "kubernetes"}
    port = {"name": "https", "protocol": "TCP"}
    return [
        (
            "/api/v1/namespaces/default/services",
            make_object("v1", "Service", "kubernetes", labels=labels)
            | {"spec": {"clusterIP": str(ranges.api), "ports": [port | {"port": 443, "targetPort": API_PORT}]}},
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            endpoint_slice("kubernetes", ranges, [port | {"port": API_PORT}]),
        ),
    ]


def endpoint_slice(service: str, ranges: Ranges, ports: list[Object]) -> Object:
    """That a Service is served on the head."""
    labels = {"kubernetes.io/service-name": service}
    return make_object("discovery.k8s.io/v1", "EndpointSlice", service, labels=labels) | {
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(ranges.node(HEAD))], "conditions": {"ready": True}}],
        "ports": ports,
    }


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
            endpoint_slice("kube-dns", ranges, ports),
        ),
    ]


def coredns_role() -> list[tuple[str, Object]]:
    """The permissions of CoreDNS."""
    watched = ["list", "watch"]
    return make_role(
        "pinnace:coredns",
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": watched},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watched},
    )


def storage_role() -> list[tuple[str, Object]]:
    """The permissions of the provisioner of volumes (see ``pinnace.storage``)."""
    changes = ["list", "watch", "patch"]
    return make_role(
        "pinnace:storage",
        {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": [*changes, "create", "delete"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": changes},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]},
    )


def storage_classes() -> list[tuple[str, Object]]:
    """The storage classes of every cluster."""
    return [
        _storage_class("shared", SHARED, annotations={"storageclass.kubernetes.io/is-default-class": "true"}),
        _storage_class("shared-retain", SHARED, reclaim="Retain"),
        _storage_class("scratch", SCRATCH, binding="WaitForFirstConsumer"),
    ]


def host_network_class() -> list[tuple[str, Object]]:
    """The RuntimeClass of pods in the hosts' network (see ``node.shim_server``); not in restricted clusters."""
    body = make_object("node.k8s.io/v1", "RuntimeClass", HOST_NETWORK) | {"handler": HOST_NETWORK}
    return [("/apis/node.k8s.io/v1/runtimeclasses", body)]


def no_resize() -> list[tuple[str, Object]]:
    """A policy that refuses in-place resizes on nodes without cgroups, where the kubelet of 1.36 crashes on them.

    It dereferences the configuration of the pod's cgroup, which is nil with ``cgroupsPerQOS: false``. The policy's
    parameters are these nodes: the API server evaluates it for each of them, and one that refuses is enough.
    """
    group, name = "admissionregistration.k8s.io/v1", "pinnace-no-resize"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/resize"], "operations": ["UPDATE"]}
    message = "pods cannot be resized in place: the node has no cgroups, and the kubelet needs one; create the pod anew"
    elsewhere = "!has(object.spec.nodeName) || object.spec.nodeName != params.metadata.name"
    without = {"matchExpressions": [{"key": HAS_CGROUPS, "operator": "DoesNotExist"}]}
    policy = make_object(group, "ValidatingAdmissionPolicy", name) | {
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "v1", "kind": "Node"},
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": elsewhere, "message": message, "reason": "Forbidden"}],
        }
    }
    parameters = {"selector": without, "parameterNotFoundAction": "Allow"}
    bound = {"spec": {"policyName": name, "validationActions": ["Deny"], "paramRef": parameters}}
    return [
        (f"/apis/{group}/validatingadmissionpolicies", policy),
        (
            f"/apis/{group}/validatingadmissionpolicybindings",
            make_object(group, "ValidatingAdmissionPolicyBinding", name) | bound,
        ),
    ]


def common_objects() -> list[tuple[str, Object]]:
    """The objects that are the same in every cluster; the seed contains them."""
    return [*default_service_account(), *coredns_role(), *storage_role(), *storage_classes(), *no_resize()]


def _storage_class(
    name: str,
    provisioner: str,
    *,
    reclaim: str = "Delete",
    binding: str = "Immediate",
    annotations: dict[str, str] | None = None,
) -> tuple[str, Object]:
    body = make_object("storage.k8s.io/v1", "StorageClass", name) | {
        "provisioner": provisioner,
        "reclaimPolicy": reclaim,
        "volumeBindingMode": binding,
        "allowVolumeExpansion": True,
    }
    body["metadata"]["annotations"] = annotations or {}
    return "/apis/storage.k8s.io/v1/storageclasses", body


def make_role(name: str, *rules: Object) -> list[tuple[str, Object]]:
    """A ClusterRole, and its binding to the user of the same name."""
    group = "rbac.authorization.k8s.io"
    return [
        (f"/apis/{group}/v1/clusterroles", make_object(f"{group}/v1", "ClusterRole", name) | {"rules": list(rules)}),
        (
            f"/apis/{group}/v1/clusterrolebindings",
            binding(name, role=name, user=name),
        ),
    ]


def binding(name: str, *, role: str, user: str) -> Object:
    """A ClusterRoleBinding of a user."""
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
