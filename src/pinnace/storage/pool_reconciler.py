"""Reconciles the volumes of one pool: each is an API object and a directory, created and removed together."""

from __future__ import annotations

import http
import logging
import threading
from typing import TYPE_CHECKING, Any

from pinnace.kube.client import ignoring
from pinnace.kube.events import EventRecorder
from pinnace.storage import claims
from pinnace.storage.directories import VolumeNameError, volume_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.kube.client import Api
    from pinnace.storage.claims import Pool
    from pinnace.storage.directories import Directories

    Object = dict[str, Any]

log = logging.getLogger(__name__)


class PoolReconciler:
    """Does the next step for each claim and each volume of a pool. Every step is idempotent."""

    def __init__(self, api: Api, pool: Pool, directories: Directories) -> None:
        self.api = api
        self.pool = pool
        self.directories = directories
        self.recorder = EventRecorder(api, pool.provisioner)
        self.discarded = threading.Event()

    def begin(self, all_claims: Sequence[Object], volumes: Sequence[Object]) -> None:
        """Discard orphaned ephemeral directories: of a crash while one was made, or of a cluster that was killed."""
        self.directories.prepare()
        owned = [volume for volume in volumes if self.pool.owns(volume)]
        known = {volume["spec"].get("local", {}).get("path", "").rpartition("/")[2] for volume in owned}
        known |= {name_for(claim) for claim in all_claims}
        for name in self.directories.ephemeral() - known:
            log.info("%s belongs to nothing: removing it", name)
            self.directories.discard(name)
        self.discarded.set()
        threading.Thread(target=self._empty_trash, name="trash", daemon=True).start()

    def _empty_trash(self) -> None:
        """Remove discarded volumes in a thread of its own: a volume may have a million files."""
        while self.discarded.wait():
            self.discarded.clear()
            try:
                self.directories.empty_trash()
            except Exception:  # this thread serves all volumes; what is left is tried again
                log.exception("cannot empty the trash")

    def claim(self, claim: Object, volume: Object | None) -> None:
        if self.pool.serves(claim):
            if volume is None:
                self._provision(claim)
        elif volume is not None and self.pool.owns(volume):
            self._expand(claim, volume)

    def _provision(self, claim: Object) -> None:
        name = claim["spec"]["storageClassName"]
        storage_class = self.api.get(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
        if storage_class.get("provisioner", self.pool.provisioner) != self.pool.provisioner:
            return  # the annotation of a claim is untrusted
        if claims.waits_for_consumer(storage_class) and not claims.selected_node(claim):
            return
        if reason := claims.refusal(claim, self.pool.provisioner):
            self._warn(claim, reason)
            return
        ephemeral = storage_class.get("reclaimPolicy", "Delete") == "Delete"
        try:
            path = self.directories.make(name_for(claim), ephemeral=ephemeral)
        except OSError as error:
            self._warn(claim, f"its directory cannot be made: {error}")
            raise
        self.api.create("/api/v1/persistentvolumes", claims.volume_for(claim, storage_class, self.pool, path))
        log.info("made %s", path)

    def _warn(self, claim: Object, text: str) -> None:
        self.recorder.warn_once(claim, "PersistentVolumeClaim", claims.PROVISIONING_FAILED, text)

    def _expand(self, claim: Object, volume: Object) -> None:
        metadata = claim["metadata"]
        of_volume, of_claim = claims.expansion(claim, volume)
        if of_volume:
            self.api.patch(f"/api/v1/persistentvolumes/{volume['metadata']['name']}", of_volume)
        if of_claim:
            path = f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims/{metadata['name']}/status"
            self.api.patch(path, of_claim)

    def volume(self, volume: Object) -> None:
        if not self.pool.owns(volume):
            return
        try:
            name = self.directories.name_of(volume["spec"]["local"]["path"])
        except (VolumeNameError, KeyError) as error:
            log.warning("%s says that it is ours and is not: %r", volume["metadata"]["name"], error)
            return
        fate = claims.fate(volume)
        if fate is claims.Fate.KEEP:
            self.directories.mark(name, ephemeral=claims.is_ephemeral(volume))
            return
        if fate is claims.Fate.REMOVE:
            self.directories.discard(name)
            self.discarded.set()
            log.info("removed %s", name)
        else:
            self.directories.mark(name, ephemeral=False)
        delete_volume(self.api, volume)


def name_for(claim: Object) -> str:
    metadata = claim["metadata"]
    return volume_name(metadata["namespace"], metadata["name"], metadata["uid"])


def delete_volume(api: Api, volume: Object) -> None:
    """Delete a volume's object, then remove our finalizer from it."""
    path = f"/api/v1/persistentvolumes/{volume['metadata']['name']}"
    with ignoring(http.HTTPStatus.NOT_FOUND):
        left = api.request("DELETE", path)
        if claims.FINALIZER in left["metadata"].get("finalizers", ()):
            api.patch(path, claims.without_finalizer(left))
