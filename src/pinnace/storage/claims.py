"""PersistentVolumeClaims and the PersistentVolumes that satisfy them: pure functions over API objects.

The protocol with the controller-manager and the scheduler is that of every external provisioner. When no existing
volume fits, the controller-manager annotates the claim with the provisioner; the scheduler annotates it with the node;
we create a volume that refers to the claim; the controller-manager binds them. A volume has our finalizer, so that it
cannot be deleted before its data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import SCRATCH
from pinnace.kube.quantities import quantity

if TYPE_CHECKING:
    from pathlib import Path

    Object = dict[str, Any]

PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
STORAGE_PROVISIONER = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
SELECTED_NODE = "volume.kubernetes.io/selected-node"
FINALIZER = "pinnace.dev/data"
HOSTNAME = "kubernetes.io/hostname"
SINGLE_NODE_MODES = {"ReadWriteOnce", "ReadWriteOncePod"}
PROVISIONING_FAILED = "ProvisioningFailed"  # the reason of an Event
RESIZE_CONDITIONS = {"Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"}


class Fate(StrEnum):
    """What to do with a volume."""

    KEEP = "keep"
    REMOVE = "remove"  # with its data
    RELEASE = "release"  # delete the object; the data stays


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The volumes of a provisioner, and of one node if they are node-local. One process manages them."""

    provisioner: str
    node: str | None = None

    def serves(self, claim: Object) -> bool:
        """Whether a claim waits for a volume of this pool."""
        if claim["spec"].get("volumeName") or "deletionTimestamp" in claim["metadata"]:
            return False
        return requested_provisioner(claim) == self.provisioner and self.node in {None, selected_node(claim)}

    def owns(self, volume: Object) -> bool:
        """Whether a volume belongs to this pool."""
        return provisioner_of(volume) == self.provisioner and self.node in {None, node_of(volume)}


def requested_provisioner(claim: Object) -> str | None:
    annotations = claim["metadata"].get("annotations", {})
    return next((annotations[key] for key in STORAGE_PROVISIONER if key in annotations), None)


def selected_node(claim: Object) -> str | None:
    node: str | None = claim["metadata"].get("annotations", {}).get(SELECTED_NODE)
    return node


def provisioner_of(volume: Object) -> str | None:
    name: str | None = volume["metadata"].get("annotations", {}).get(PROVISIONED_BY)
    return name


def node_of(volume: Object) -> str | None:
    """The node that a volume is on; None if it is on all."""
    terms = volume["spec"].get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms", ())
    for term in terms:
        for expression in term.get("matchExpressions", ()):
            if expression["key"] == HOSTNAME and expression["operator"] == "In" and len(expression["values"]) == 1:
                node: str = expression["values"][0]
                return node
    return None


def refusal(claim: Object, provisioner: str) -> str | None:
    """Why a claim cannot be satisfied; None if it can."""
    spec = claim["spec"]
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        return "only volumes with volumeMode Filesystem can be made; there are no block devices here"
    if spec.get("selector"):
        return "a claim with a selector is for volumes that exist already; leave it out to have one made"
    if spec.get("dataSource") or spec.get("dataSourceRef"):
        return "volumes start empty: cloning and snapshots are not supported"
    if provisioner == SCRATCH and not set(spec["accessModes"]) <= SINGLE_NODE_MODES:
        return "scratch is of one node: ask for ReadWriteOnce, or for the class `shared`"
    return None


def volume_for(claim: Object, storage_class: Object, pool: Pool, path: Path) -> Object:
    """The PersistentVolume for a claim. Its name follows from the claim, so creating it is idempotent."""
    metadata, spec = claim["metadata"], claim["spec"]
    node_term = {"key": HOSTNAME, "operator": "In", "values": [pool.node]} if pool.node else (
        {"key": HOSTNAME, "operator": "Exists"})  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{metadata['uid']}",
            "annotations": {PROVISIONED_BY: pool.provisioner},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "storageClassName": storage_class["metadata"]["name"],
            "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            # Of the directory volumes only `local` ones get a pod's fsGroup, and these need a nodeAffinity.
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node_term]}]}},
        },
    }


def waits_for_consumer(storage_class: Object) -> bool:
    return bool(storage_class.get("volumeBindingMode") == "WaitForFirstConsumer")


def is_ephemeral(volume: Object) -> bool:
    """Whether a volume's data ends with the cluster. Users may change that by patching the volume."""
    return bool(volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete")


def fate(volume: Object) -> Fate:
    """What to do with a volume now."""
    phase, deleting = volume.get("status", {}).get("phase"), "deletionTimestamp" in volume["metadata"]
    if is_ephemeral(volume):
        return Fate.REMOVE if phase in {"Released", "Failed"} or (deleting and phase != "Bound") else Fate.KEEP
    return Fate.RELEASE if deleting and phase != "Bound" else Fate.KEEP


def without_finalizer(volume: Object) -> Object:
    """The patch that removes our finalizer. resourceVersion guards other finalizers, which are removed concurrently."""
    others = [name for name in volume["metadata"].get("finalizers", ()) if name != FINALIZER]
    return {"metadata": {"finalizers": others, "resourceVersion": volume["metadata"]["resourceVersion"]}}


def expansion(claim: Object, volume: Object) -> tuple[Object | None, Object | None]:
    """Patches of a volume and of its claim's status that give both the requested size.

    Directories have no size of their own, so there is nothing else to resize.
    """
    requested = claim["spec"]["resources"]["requests"]["storage"]
    status = claim.get("status", {})
    has = status.get("capacity", {}).get("storage")
    if status.get("phase") != "Bound" or has is None or quantity(requested) <= quantity(has):
        return None, None
    of_volume = None
    if quantity(volume["spec"]["capacity"]["storage"]) < quantity(requested):
        of_volume = {"spec": {"capacity": {"storage": requested}}}
    conditions = [c for c in status.get("conditions", ()) if c["type"] not in RESIZE_CONDITIONS]
    of_claim = {
        "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]},
        "status": {
            "capacity": {"storage": requested},
            "allocatedResources": {"storage": requested},
            "allocatedResourceStatuses": None,
            "conditions": conditions or None,
        },
    }
    return of_volume, of_claim
