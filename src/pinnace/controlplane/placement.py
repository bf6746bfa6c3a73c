"""Which pods become Slurm jobs: objects by which the API itself decides it, when a pod is created.

A pod that is to be a job gets the scheduler ``pinnace``, which no scheduler of Kubernetes' own answers to; the
provisioner finds it by that name. What says so, the nearest word first:

    the pod            annotation pinnace.dev/run-as: job, or node; or runtimeClassName: slurm-job, or slurm-node
    its namespace      label pinnace.dev/run-as
    the cluster        pinnace up --pods-as-jobs

It is a policy of the API server's, not a webhook: nothing of ours has to answer for a pod to be created.
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
# A pod whose node is its own job is not evicted when that node is silent: Slurm says what became of it. The API server
# has given it tolerations for a minute by now; they become tolerations for ever. (Lists of objects in CEL: it panics.)
_FOR_EVER = """[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
.filter(i, i < size(object.spec.?tolerations.orValue([])) && has(object.spec.tolerations[i].tolerationSeconds)
  && object.spec.tolerations[i].?key.orValue("").startsWith("node.kubernetes.io/"))
.map(i, JSONPatch{op: "remove", path: "/spec/tolerations/" + string(i) + "/tolerationSeconds"})"""


def chosen(*, by_default: bool) -> str:
    """The condition, in CEL: whether a pod is to be a job."""
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
        f" + {_FOR_EVER}"
    )
    return make_object("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", NAME) | {
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": name, "expression": text} for name, text in conditions.items()],
            "variables": [
                {"name": "chosen", "expression": chosen(by_default=by_default)}
            ],  # conditions see no namespace
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        }
    }


def provisioner_role() -> list[tuple[str, Object]]:
    """What the provisioner, and the nodes that are for one pod, may do."""
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
    """All of it, for a cluster whose pods may be jobs."""
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
    """A pod that would be a job: created without being kept, it tells whether the API decides already."""
    body = make_object("v1", "Pod", "pinnace-probe")
    body["metadata"]["annotations"] = {RUN_AS: "job"}
    held = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}  # a restricted cluster takes it too
    body["spec"] = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "none", "securityContext": held}],
    }
    return "/api/v1/namespaces/default/pods?dryRun=All", body
