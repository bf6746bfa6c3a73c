"""The objects of a load: simulated nodes, Deployments of pods for them, and single pods that are timed."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ANNOTATION",
    "DEPLOYMENTS",
    "FAKE",
    "PODS",
    "PROBE",
    "REPLICAS",
    "SIMULATED",
    "TAINT",
    "deployment",
    "namespace",
    "node",
    "probe",
]

ANNOTATION, FAKE = "kwok.x-k8s.io/node", "fake"  # of the nodes that kwok may touch
TAINT = "kwok.x-k8s.io/node"  # keeps all other pods from them
SIMULATED = "type=kwok"  # their label
NAMESPACE = "growth"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
PROBE = "growth=probe"  # the label of pods that are timed
REPLICAS = 100  # of a Deployment
NODE_PODS = 250  # of a simulated node, as of a real one

Object = dict[str, Any]


def namespace() -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def node(number: int) -> Object:
    """A simulated node, which other pods do not tolerate."""
    name = f"kwok-{number}"
    resources = {"cpu": "64", "memory": "256Gi", "pods": str(NODE_PODS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {ANNOTATION: FAKE, "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": TAINT, "value": FAKE, "effect": "NoSchedule"}]},
        "status": {"allocatable": resources, "capacity": resources},
    }


def pod_spec(image: str) -> Object:
    """Of a pod with an image on real nodes, or without one on simulated nodes."""
    container = {"name": "main", "image": image or "none.invalid/none", "resources": {"requests": {"cpu": "10m"}}}
    if image:
        command = {"command": ["sleep", "100000"], "imagePullPolicy": "IfNotPresent"}
        return {"containers": [container | command], "terminationGracePeriodSeconds": 0}
    tolerated = [{"key": TAINT, "operator": "Exists"}]
    label, _, value = SIMULATED.partition("=")
    return {"containers": [container], "nodeSelector": {label: value}, "tolerations": tolerated}


def deployment(number: int, replicas: int, image: str) -> Object:
    labels = {"growth": f"load-{number}"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"load-{number}"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(image)},
        },
    }


def probe(name: str, image: str) -> Object:
    label, _, value = PROBE.partition("=")
    metadata = {"name": name, "labels": {label: value}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(image)}
