"""Which pods become Slurm jobs: the API server decides it with an admission policy, when a pod is created.

A pod that becomes a job gets the schedulerName ``pinnace``, which no scheduler of Kubernetes has; the provisioner
selects pods by that name. The decision is made by, in this order:

    the pod            annotation pinnace.dev/run-as: job, or node; or runtimeClassName: slurm-job, or slurm-node
    its namespace      label pinnace.dev/run-as
    the cluster        pinnace up --pods-as-jobs

It is a policy, not a webhook, so creating a pod does not depend on a process of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.controlplane.objects import make_object, make_role

if TYPE_CHECKING:
    from pinnace.controlplane.objects import Object
    from pinnace.spec import Provisioning

SCHEDULER = "pinnace"
RUN_AS = "pinnace.dev/run-as"
JOB_CLASS, NODE_CLASS = "slurm-job", "slurm-node"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NAME = "pods-as-slurm-jobs"
USER = "pinnace:provisioner"
HEAD_TAINT = "node-role.kubernetes.io/control-plane:NoSchedule"

_POD = f'object.metadata.?annotations[?"{RUN_AS}"].orValue("")'
_CLASS = 'object.spec.?runtimeClassName.orValue("")'
_NAMESPACE = f'namespaceObject.metadata.?labels[?"{RUN_AS}"].orValue("")'
# A pod whose node is its own job is not evicted when that node is unreachable: Slurm knows what became of it. By now
# the API server has added tolerations for a minute; they become unlimited. (Lists of objects in CEL make it panic.)
_TOLERATE_FOR_EVER = """[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
.filter(i, i < size(object.spec.?tolerations.orValue([])) && has(object.spec.tolerations[i].tolerationSeconds)
  && object.spec.tolerations[i].?key.orValue("").startsWith("node.kubernetes.io/"))
.map(i, JSONPatch{op: "remove", path: "/spec/tolerations/" + string(i) + "/tolerationSeconds"})"""


def chosen(*, by_default: bool) -> str:
    """The condition, in CEL: whether a pod becomes a job."""
    default = "true" if by_default else "false"
    return (
        f'{_POD} != "" ? {_POD} == "job" : '
        f'{_CLASS} == "{JOB_CLASS}" ? true : {_CLASS} == "{NODE_CLASS}" ? false : '
        f'{_NAMESPACE} != "" ? {_NAMESPACE} == "job" : {default}'
    )


def policy(*, by_default: bool) -> Object:
    conditions = {
        "not-placed": 'object.spec.?nodeName.orValue("") == ""',
        "not-for-another-scheduler": 'object.spec.?schedulerName.orValue("default-scheduler") == "default-scheduler"',
        "not-of-every-node": 'object.metadata.?ownerReferences.orValue([]).all(o, o.kind != "DaemonSet")',
    }
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    patch = (
        f'!variables.chosen ? [] : [JSONPatch{{op: "add", path: "/spec/schedulerName", value: "{SCHEDULER}"}}]'
        f" + {_TOLERATE_FOR_EVER}"
    )
    return make_object("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", NAME) | {
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": name, "expression": text} for name, text in conditions.items()],
            "variables": [
                {"name": "chosen", "expression": chosen(by_default=by_default)}
            ],  # a variable, because match conditions do not have the namespace
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        }
    }


def provisioner_role() -> list[tuple[str, Object]]:
    """The permissions of the provisioner, and of nodes for one pod."""
    read = ["get", "list", "watch"]
    return make_role(
        USER,
        {"apiGroups": [""], "resources": ["pods"], "verbs": [*read, "patch", "delete"]},
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods/status", "nodes/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": [*read, "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "patch"]},
        {"apiGroups": ["apps", "batch", "argoproj.io"], "resources": ["*"], "verbs": ["get"]},
    )


def placement_objects(provisioning: Provisioning) -> list[tuple[str, Object]]:
    """All objects of a cluster whose pods may be jobs."""
    binding = make_object("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding", NAME)
    classes = [
        make_object("node.k8s.io/v1", "RuntimeClass", name) | {"handler": "runc"} for name in (JOB_CLASS, NODE_CLASS)
    ]
    return [
        *provisioner_role(),
        *(("/apis/node.k8s.io/v1/runtimeclasses", body) for body in classes),
        (f"{ADMISSION}/mutatingadmissionpolicies", policy(by_default=provisioning.pods_as_jobs)),
        (f"{ADMISSION}/mutatingadmissionpolicybindings", binding | {"spec": {"policyName": NAME}}),
    ]


def probe() -> tuple[str, Object]:
    """A pod that becomes a job. A dry-run creation of it shows whether the policy is in effect."""
    body = make_object("v1", "Pod", "pinnace-probe")
    body["metadata"]["annotations"] = {RUN_AS: "job"}
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }  # a restricted cluster admits it too
    body["spec"] = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "none", "securityContext": security}],
    }
    return "/api/v1/namespaces/default/pods?dryRun=All", body
