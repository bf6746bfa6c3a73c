"""The provisioner: makes volumes for claims, lets them grow, and removes them.

Every node runs one for its own scratch, since only there directories can be made and removed; the head's also looks
after the shared file system. No two look after the same volume, so there is nothing to elect or to lock.

It looks at claims and volumes as they are and does the next step for each; every step can be done twice. What was lost
when it died is found again when it starts.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pinnace.controlplane.objects import SCRATCH, SHARED
from pinnace.kube.cache import Cache, namespaced_name
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.watch import end_with_thread, watch
from pinnace.kube.workqueue import WorkQueue
from pinnace.storage.claims import Pool
from pinnace.storage.directories import Directories
from pinnace.storage.host_paths import HostPaths
from pinnace.storage.lost_nodes import LostNodes
from pinnace.storage.pool_reconciler import PoolReconciler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.kube.watch import Changed, Listed
    from pinnace.kube.workqueue import Key
    from pinnace.spec import NodeSpec

    Object = dict[str, Any]

CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
RETRY_DELAYS = (0.05, 0.2, 1.0, 5.0, 30.0)  # seconds before a claim or volume is reconciled again that has failed

log = logging.getLogger(__name__)


class VolumeController(Protocol):
    """Does the next step for claims and volumes, if they are its own."""

    def begin(self, all_claims: Sequence[Object], volumes: Sequence[Object]) -> None:
        """Called once, with everything that there is."""

    def claim(self, claim: Object, volume: Object | None) -> None:
        """``volume`` is the one that was made for it, or that it is bound to."""

    def volume(self, volume: Object) -> None: ...


class Provisioner:
    """Calls every controller for each claim and volume that has changed, one after the other."""

    def __init__(self, controllers: Sequence[VolumeController]) -> None:
        self.controllers = controllers
        self.cache = Cache(CLAIMS, VOLUMES)
        self.queue = WorkQueue(RETRY_DELAYS)

    def run(self, kubeconfig: Path) -> None:
        for kind in (CLAIMS, VOLUMES):
            watch(kubeconfig, kind, self.note)
        self.cache.wait_synced()
        self.begin()
        while True:
            self.work()

    def note(self, change: Listed | Changed) -> None:
        """Take what a watch tells, and have it reconciled. Watches call this from threads of their own."""
        for thing in self.cache.apply(change):
            self._enqueue(change.kind, namespaced_name(thing))
            if change.kind == VOLUMES and (claim := thing["spec"].get("claimRef")):
                self._enqueue(CLAIMS, f"{claim['namespace']}/{claim['name']}")

    def _enqueue(self, kind: str, name: str) -> None:
        self.queue.forget((kind, name))
        self.queue.add((kind, name))

    def begin(self) -> None:
        """Let the controllers find again what was lost when the last provisioner died."""
        with self.cache.lock:
            claims, volumes = list(self.cache[CLAIMS].values()), list(self.cache[VOLUMES].values())
        for controller in self.controllers:
            controller.begin(claims, volumes)

    def work(self, timeout: float | None = None) -> bool:
        """Reconcile the next claim or volume; False if none is due within ``timeout`` seconds."""
        return self.queue.process_next(self._reconcile, log_failure, timeout=timeout)

    def _reconcile(self, key: Key) -> None:
        kind, _ = key
        found = self.cache.get(*key)
        if found is None:
            return
        for controller in self.controllers:
            if kind == VOLUMES:
                controller.volume(found)
            else:
                controller.claim(found, self.cache.get(VOLUMES, volume_of(found)))


def log_failure(key: Key, error: Exception) -> None:
    expected = isinstance(error, (*API_FAILURES, ValueError, KeyError))
    log.warning("%s %s: %r", *key, error, exc_info=None if expected else error)


def volume_of(claim: Object) -> str:
    return str(claim["spec"].get("volumeName") or f"pvc-{claim['metadata']['uid']}")


def serve(node: NodeSpec, scratch: Path) -> None:
    """Be the provisioner of a node, in a process of its own. ``scratch`` is the directory of the node's own volumes."""
    threading.excepthook = end_with_thread
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    kubeconfig = Path(node.secret("storage.kubeconfig"))
    api = Api(kubeconfig)
    controllers: list[VolumeController] = [
        PoolReconciler(api, Pool(provisioner=SCRATCH, node=node.name), Directories(scratch))
    ]
    if node.is_head:
        shared, restriction = Directories(node.cluster.volumes), node.cluster.restriction
        controllers += [PoolReconciler(api, Pool(provisioner=SHARED), shared), LostNodes(api)]
        controllers += [HostPaths(api, restriction.host_paths if restriction else ())]
    Provisioner(controllers).run(kubeconfig)
