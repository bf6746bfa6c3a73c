"""A restricted cluster: which pods are admitted, where others than the cluster's user may create them.

Three parts, all in the API server, so that refusing a pod does not depend on a process of ours:

    Pod Security          the level `restricted` or `baseline` of the Pod Security Standards, for every namespace
    a policy              what these standards allow and we do not: other pods' nodes, system priorities, other volumes
    admission plugins     no external addresses in Services; images are pulled with the pod's own credentials

kube-system is exempt, and so is a namespace that is labelled as privileged. Only the cluster's user can set that label:
no role for a namespace includes the namespace itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import make_object

if TYPE_CHECKING:
    from pinnace.controlplane.objects import Object
    from pinnace.spec import Restriction

LEVELS = ("restricted", "baseline")
EXEMPT = "kube-system"
ENFORCE = "pod-security.kubernetes.io/enforce"
HOST_PATH = "pinnace.dev/host-path"  # the provisioner of listed directories, see storage.host_paths
ADMISSION_PLUGINS = ("DenyServiceExternalIPs", "AlwaysPullImages")
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NAME = "pinnace-restricted"
# Those of the level `restricted`, without types that mount network file systems or run programs on the node.
VOLUMES = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected",
           "secret")  # fmt: skip
RULES = {
    "nodes are chosen by the scheduler; leave nodeName out": (
        'request.operation != "CREATE" || object.spec.?nodeName.orValue("") == ""'
    ),
    "a toleration must name a taint, and neither one of the control plane nor of another pod's node": (
        'object.spec.?tolerations.orValue([]).all(t, t.?key.orValue("") != "" '
        '&& !t.key.startsWith("node-role.kubernetes.io/") && !t.key.startsWith("pinnace.dev/"))'
    ),
    "priority classes of the system are not for pods of a restricted cluster": (
        '!object.spec.?priorityClassName.orValue("").startsWith("system-")'
    ),
    f"volumes may be {', '.join(VOLUMES)}": (
        f"object.spec.?volumes.orValue([]).all(v, {' || '.join(f'has(v.{kind})' for kind in VOLUMES)})"
    ),
}


def admission_configuration(restriction: Restriction) -> dict[str, Any]:
    """The API server's ``--admission-control-config-file``."""
    kinds = ("enforce", "audit", "warn")
    defaults = dict.fromkeys(kinds, restriction.level) | {f"{kind}-version": "latest" for kind in kinds}
    configuration = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": defaults,
        "exemptions": {"usernames": [], "runtimeClasses": [], "namespaces": [EXEMPT]},
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": configuration}],
    }


def policy() -> Object:
    """The policy for pods in every namespace that is neither exempt nor privileged."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]}
    namespaces = [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [EXEMPT]},
        {"key": ENFORCE, "operator": "NotIn", "values": ["privileged"]},
    ]
    return make_object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", NAME) | {
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": {"matchExpressions": namespaces}},
            "validations": [
                {"expression": expression, "message": f"this cluster is restricted: {message}", "reason": "Forbidden"}
                for message, expression in RULES.items()
            ],
        }
    }


def class_name(path: str) -> str:
    """The name of a directory's storage class: `host-data-sets-1` for `/data/Sets_1`."""
    return f"host-{re.sub(r'[^a-z0-9]+', '-', path.lower()).strip('-')}"[:200].rstrip("-")


def host_path_classes(paths: tuple[str, ...]) -> list[tuple[str, Object]]:
    """A storage class for each directory of the host that pods may have, through a claim."""
    classes = []
    for path in paths:
        body = make_object("storage.k8s.io/v1", "StorageClass", class_name(path)) | {
            "provisioner": HOST_PATH,
            "parameters": {"path": path},
            "reclaimPolicy": "Retain",  # so that no controller ever removes the content
            "volumeBindingMode": "Immediate",
        }
        classes.append(("/apis/storage.k8s.io/v1/storageclasses", body))
    return classes


def restriction_objects(restriction: Restriction) -> list[tuple[str, Object]]:
    """The policy, its binding, and the storage classes."""
    binding = make_object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", NAME)
    return [
        (f"{ADMISSION}/validatingadmissionpolicies", policy()),
        (
            f"{ADMISSION}/validatingadmissionpolicybindings",
            binding | {"spec": {"policyName": NAME, "validationActions": ["Deny"]}},
        ),
        *host_path_classes(restriction.host_paths),
    ]
