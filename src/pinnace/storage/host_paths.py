"""Directories of the host as volumes, in a restricted cluster: only those that its user has listed.

Pods of such a cluster may have no hostPath. A claim whose storage class names a listed directory gets a
PersistentVolume for it. The volume's object is deleted with the claim; the content of the directory is never touched.
Claims and classes are untrusted, so the list decides, not the class.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.podsecurity import HOST_PATH
from pinnace.kube.events import EventRecorder
from pinnace.storage import claims
from pinnace.storage.pool_reconciler import delete_volume

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pinnace.kube.client import Api

    Object = dict[str, Any]

POOL = claims.Pool(provisioner=HOST_PATH)

log = logging.getLogger(__name__)


def refusal(claim: Object, storage_class: Object, listed: Collection[str]) -> str | None:
    """Why a claim is refused; None if it is not."""
    if storage_class.get("provisioner") != HOST_PATH:
        return f"the class {storage_class['metadata']['name']} is for other volumes"
    if storage_class.get("parameters", {}).get("path") not in listed:
        return "the cluster's user has not listed this directory (pinnace up --allow-host-path)"
    return claims.refusal(claim, HOST_PATH)


def volume_for(claim: Object, storage_class: Object) -> Object:
    """The PersistentVolume. Its type is hostPath: in a `local` one the kubelet changes owner and mode of the files."""
    made = claims.volume_for(claim, storage_class, POOL, Path(storage_class["parameters"]["path"]))
    spec = {name: value for name, value in made["spec"].items() if name not in {"local", "nodeAffinity"}}
    spec["hostPath"] = {"path": storage_class["parameters"]["path"], "type": "Directory"}
    metadata = {name: value for name, value in made["metadata"].items() if name != "finalizers"}
    return made | {"metadata": metadata, "spec": spec | {"persistentVolumeReclaimPolicy": "Retain"}}


class HostPaths:
    """Reconciles the claims and volumes of host paths."""

    def __init__(self, api: Api, listed: Collection[str]) -> None:
        self.api, self.listed = api, frozenset(listed)
        self.recorder = EventRecorder(api, HOST_PATH)

    def begin(self, all_claims: Sequence[Object], volumes: Sequence[Object]) -> None:
        """Nothing to recover."""

    def claim(self, claim: Object, volume: Object | None) -> None:
        if volume is not None or not POOL.serves(claim):
            return
        name = claim["spec"]["storageClassName"]
        storage_class = self.api.get(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
        if reason := refusal(claim, storage_class, self.listed):
            self.recorder.warn_once(claim, "PersistentVolumeClaim", claims.PROVISIONING_FAILED, reason)
            return
        self.api.create("/api/v1/persistentvolumes", volume_for(claim, storage_class))
        log.info("%s/%s has %s", claim["metadata"]["namespace"], claim["metadata"]["name"], name)

    def volume(self, volume: Object) -> None:
        if POOL.owns(volume) and volume.get("status", {}).get("phase") in {"Released", "Failed"}:
            delete_volume(self.api, volume)
