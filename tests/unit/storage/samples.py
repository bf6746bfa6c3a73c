"""API objects as the controller-manager and the scheduler leave them."""

from __future__ import annotations

from typing import Any

from pinnace.controlplane.objects import SHARED
from pinnace.storage.claims import PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER

UID = "8917389f-1ab7-497b-a936-5e0831d70938"


def claim(*, provisioner: str = SHARED, node: str | None = None, **spec: Any) -> dict[str, Any]:
    """A claim for which no volume was found."""
    annotations = {STORAGE_PROVISIONER[0]: provisioner} | ({SELECTED_NODE: node} if node else {})
    metadata = {"name": "data", "namespace": "default", "uid": UID, "resourceVersion": "7", "annotations": annotations}
    usual = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "shared",
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"metadata": metadata, "spec": usual | spec, "status": {"phase": "Pending"}}


def bound(*, has: str, wants: str, conditions: list[dict[str, str]] | None = None) -> dict[str, Any]:
    """A claim that has a volume, and perhaps wants a larger one."""
    thing = claim(volumeName=f"pvc-{UID}", resources={"requests": {"storage": wants}})
    status = {"phase": "Bound", "capacity": {"storage": has}, "conditions": conditions or []}
    return thing | {"status": status}


def volume(
    *, path: str, policy: str = "Delete", phase: str = "Bound", going: bool = False, provisioner: str = SHARED
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": f"pvc-{UID}",
        "resourceVersion": "8",
        "annotations": {PROVISIONED_BY: provisioner},
        "finalizers": ["kubernetes.io/pv-protection", "pinnace.dev/data"],
    }
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {
        "persistentVolumeReclaimPolicy": policy,
        "capacity": {"storage": "1Gi"},
        "local": {"path": path},
        "claimRef": {"namespace": "default", "name": "data", "uid": UID},
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def storage_class(*, policy: str = "Delete", binding: str = "Immediate") -> dict[str, Any]:
    return {"metadata": {"name": "shared"}, "reclaimPolicy": policy, "volumeBindingMode": binding}
