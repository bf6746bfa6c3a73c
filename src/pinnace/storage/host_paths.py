"""Directories of the host as volumes, in a restricted cluster: those that its user has listed, and no others.

Pods of such a cluster may have no hostPath. A claim of a storage class that names a listed directory gets a
PersistentVolume that leads there, and the volume's object goes with the claim; what is in the directory is never
touched. Claims and classes are words of others, so the list decides, not the class.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.podsecurity import HOST_PATH
from pinnace.kube.events import EventRecorder
from pinnace.storage import claims
from pinnace.storage.keeper import let_go

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pinnace.kube.client import Api

    Object = dict[str, Any]

POOL = claims.Pool(provisioner=HOST_PATH)

log = logging.getLogger(__name__)


def refusal(claim: Object, storage_class: Object, listed: Collection[str]) -> str | None:
    """Why a claim gets no directory; None if it does."""
    if storage_class.get("provisioner") != HOST_PATH:
        return f"the class {storage_class['metadata']['name']} is for other volumes"
    if storage_class.get("parameters", {}).get("path") not in listed:
        return "the cluster's user has not listed this directory (pinnace up --allow-host-path)"
    return claims.refusal(claim, HOST_PATH)


def volume_for(claim: Object, storage_class: Object) -> Object:
    """The PersistentVolume. Of type hostPath: the kubelet changes owner and mode of what is in a `local` one."""
    made = claims.volume_for(claim, storage_class, POOL, Path(storage_class["parameters"]["path"]))
    spec = {name: value for name, value in made["spec"].items() if name not in {"local", "nodeAffinity"}}
    spec["hostPath"] = {"path": storage_class["parameters"]["path"], "type": "Directory"}
    metadata = {name: value for name, value in made["metadata"].items() if name != "finalizers"}
    return made | {"metadata": metadata, "spec": spec | {"persistentVolumeReclaimPolicy": "Retain"}}


class HostPaths:
    """The next step for each claim and each volume of these."""

    def __init__(self, api: Api, listed: Collection[str]) -> None:
        self.api, self.listed = api, frozenset(listed)
        self.recorder = EventRecorder(api, HOST_PATH)

    def begin(self, all_claims: Sequence[Object], volumes: Sequence[Object]) -> None:
        """There is nothing to find again."""

    def claim(self, claim: Object, volume: Object | None) -> None:
        if volume is not None or not POOL.is_asked(claim):
            return
        name = claim["spec"]["storageClassName"]
        storage_class = self.api.get(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
        if reason := refusal(claim, storage_class, self.listed):
            self.recorder.warn_once(claim, "PersistentVolumeClaim", claims.PROVISIONING_FAILED, reason)
            return
        self.api.create("/api/v1/persistentvolumes", volume_for(claim, storage_class))
        log.info("%s/%s has %s", claim["metadata"]["namespace"], claim["metadata"]["name"], name)

    def volume(self, volume: Object) -> None:
        if POOL.holds(volume) and volume.get("status", {}).get("phase") in {"Released", "Failed"}:
            let_go(self.api, volume)
