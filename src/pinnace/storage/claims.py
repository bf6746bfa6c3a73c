"""What a PersistentVolumeClaim asks for, and the PersistentVolume that answers it: pure functions over API objects.

The words between us, the controller-manager and the scheduler are those of every external provisioner. The
controller-manager, when no existing volume fits, writes on the claim who is to make one; the scheduler writes on which
node; we create a volume that names the claim; the controller-manager binds them. A volume carries our finalizer, so
that it cannot go before its data has.
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

MADE_BY = "pv.kubernetes.io/provisioned-by"
TO_BE_MADE_BY = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
SELECTED_NODE = "volume.kubernetes.io/selected-node"
FINALIZER = "pinnace.dev/data"
HOSTNAME = "kubernetes.io/hostname"
OF_ONE_NODE = {"ReadWriteOnce", "ReadWriteOncePod"}
PROVISIONING_FAILED = "ProvisioningFailed"  # the reason of an Event
RESIZING = {"Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"}


class Fate(StrEnum):
    """What is to become of a volume."""

    STAYS = "stays"
    REMOVE = "remove"  # with its data
    LET_GO = "let go"  # only the object; the data stays


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The volumes that one process looks after: those of a provisioner, and of one node if they are node-local."""

    provisioner: str
    node: str | None = None

    def is_asked(self, claim: Object) -> bool:
        """Whether a claim waits for a volume from here."""
        if claim["spec"].get("volumeName") or "deletionTimestamp" in claim["metadata"]:
            return False
        return asked_provisioner(claim) == self.provisioner and self.node in {None, selected_node(claim)}

    def holds(self, volume: Object) -> bool:
        """Whether a volume is one of ours."""
        return provisioner_of(volume) == self.provisioner and self.node in {None, node_of(volume)}


def asked_provisioner(claim: Object) -> str | None:
    annotations = claim["metadata"].get("annotations", {})
    return next((annotations[key] for key in TO_BE_MADE_BY if key in annotations), None)


def selected_node(claim: Object) -> str | None:
    node: str | None = claim["metadata"].get("annotations", {}).get(SELECTED_NODE)
    return node


def provisioner_of(volume: Object) -> str | None:
    name: str | None = volume["metadata"].get("annotations", {}).get(MADE_BY)
    return name


def node_of(volume: Object) -> str | None:
    """The one node where a volume is; None if it is everywhere."""
    terms = volume["spec"].get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms", ())
    for term in terms:
        for expression in term.get("matchExpressions", ()):
            if expression["key"] == HOSTNAME and expression["operator"] == "In" and len(expression["values"]) == 1:
                node: str = expression["values"][0]
                return node
    return None


def refusal(claim: Object, provisioner: str) -> str | None:
    """Why we cannot make what a claim asks for; None if we can."""
    spec = claim["spec"]
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        return "only volumes with volumeMode Filesystem can be made; there are no block devices here"
    if spec.get("selector"):
        return "a claim with a selector is for volumes that exist already; leave it out to have one made"
    if spec.get("dataSource") or spec.get("dataSourceRef"):
        return "volumes start empty: cloning and snapshots are not supported"
    if provisioner == SCRATCH and not set(spec["accessModes"]) <= OF_ONE_NODE:
        return "scratch is of one node: ask for ReadWriteOnce, or for the class `shared`"
    return None


def volume_for(claim: Object, storage_class: Object, pool: Pool, path: Path) -> Object:
    """The PersistentVolume that answers a claim. Its name follows from the claim: made twice, it is made once."""
    metadata, spec = claim["metadata"], claim["spec"]
    where = {"key": HOSTNAME, "operator": "In", "values": [pool.node]} if pool.node else (
        {"key": HOSTNAME, "operator": "Exists"})  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{metadata['uid']}",
            "annotations": {MADE_BY: pool.provisioner},
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
            # Of all plain directories only `local` ones get a pod's fsGroup, and these have to say where they are.
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}},
        },
    }


def waits_for_consumer(storage_class: Object) -> bool:
    return bool(storage_class.get("volumeBindingMode") == "WaitForFirstConsumer")


def is_ephemeral(volume: Object) -> bool:
    """Whether a volume's data ends with the cluster. Users may change their mind by patching the volume."""
    return bool(volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete")


def fate(volume: Object) -> Fate:
    """What is to become of a volume now."""
    phase, going = volume.get("status", {}).get("phase"), "deletionTimestamp" in volume["metadata"]
    if is_ephemeral(volume):
        return Fate.REMOVE if phase in {"Released", "Failed"} or (going and phase != "Bound") else Fate.STAYS
    return Fate.LET_GO if going and phase != "Bound" else Fate.STAYS


def without_finalizer(volume: Object) -> Object:
    """The patch that lets the object go. The version guards the others' finalizers, which go at the same moment."""
    others = [name for name in volume["metadata"].get("finalizers", ()) if name != FINALIZER]
    return {"metadata": {"finalizers": others, "resourceVersion": volume["metadata"]["resourceVersion"]}}


def expansion(claim: Object, volume: Object) -> tuple[Object | None, Object | None]:
    """Patches of a volume and of its claim's status after which both have the size that is asked for.

    Directories have no size of their own: the kubelet has nothing to do either.
    """
    wanted = claim["spec"]["resources"]["requests"]["storage"]
    status = claim.get("status", {})
    has = status.get("capacity", {}).get("storage")
    if status.get("phase") != "Bound" or has is None or quantity(wanted) <= quantity(has):
        return None, None
    of_volume = None
    if quantity(volume["spec"]["capacity"]["storage"]) < quantity(wanted):
        of_volume = {"spec": {"capacity": {"storage": wanted}}}
    conditions = [c for c in status.get("conditions", ()) if c["type"] not in RESIZING]
    of_claim = {
        "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]},
        "status": {
            "capacity": {"storage": wanted},
            "allocatedResources": {"storage": wanted},
            "allocatedResourceStatuses": None,
            "conditions": conditions or None,
        },
    }
    return of_volume, of_claim
