"""The provisioner: makes volumes for claims, lets them grow, and removes them.

Every node runs one for its own scratch, since only there directories can be made and removed; the head's also looks
after the shared file system. No two look after the same volume, so there is nothing to elect or to lock.

It looks at claims and volumes as they are and does the next step for each; every step can be done twice. What was lost
when it died is found again when it starts.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pinnace.controlplane.objects import SCRATCH, SHARED
from pinnace.kube.client import Api, ApiError
from pinnace.kube.watch import Changed, Listed, end_with_thread, watch
from pinnace.storage.claims import Pool
from pinnace.storage.directories import Directories
from pinnace.storage.host_paths import HostPaths
from pinnace.storage.lost_nodes import LostNodes
from pinnace.storage.pool_reconciler import PoolReconciler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Object = dict[str, Any]

CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
RETRY = (0.05, 0.2, 1.0, 5.0, 30.0)  # seconds before try n + 1

log = logging.getLogger(__name__)


class Hand(Protocol):
    """Does the next step for an object, if it is one of its own."""

    def begin(self, all_claims: Sequence[Object], volumes: Sequence[Object]) -> None:
        """Called once, with everything that there is."""

    def claim(self, claim: Object, volume: Object | None) -> None:
        """``volume`` is the one that was made for it, or that it is bound to."""

    def volume(self, volume: Object) -> None: ...


class Provisioner:
    """Knows what there is, and what is to be looked at next."""

    def __init__(self, hands: Sequence[Hand]) -> None:
        self.hands = hands
        self.changes: queue.Queue[Listed | Changed] = queue.Queue()
        self.known: dict[str, dict[str, Object]] = {}
        self.due: dict[tuple[str, str], float] = {}
        self.tries: dict[tuple[str, str], int] = {}
        self.begun = False

    def run(self, kubeconfig: Path) -> None:
        for kind in (CLAIMS, VOLUMES):
            watch(kubeconfig, kind, self.changes.put)
        while True:
            for change in self._wait():
                self.note(change)
            if self._knows_all():
                self.work(time.monotonic())

    def _knows_all(self) -> bool:
        return self.known.keys() == {CLAIMS, VOLUMES}

    def _wait(self) -> Iterator[Listed | Changed]:
        """What has changed: at least one thing, unless something is due before."""
        limit = max(0.0, min(self.due.values()) - time.monotonic()) if self.due and self._knows_all() else None
        try:
            yield self.changes.get(timeout=limit)
            while True:
                yield self.changes.get_nowait()
        except queue.Empty:
            return

    def note(self, change: Listed | Changed) -> None:
        """Remember what is, and that it is to be looked at."""
        if isinstance(change, Listed):
            self.known[change.kind] = {}
        for thing in change.objects if isinstance(change, Listed) else [change.object]:
            name = key(thing)
            if isinstance(change, Changed) and change.gone:
                self.known[change.kind].pop(name, None)
            else:
                self.known[change.kind][name] = thing
            self._look(change.kind, name)
            if change.kind == VOLUMES and (claim := thing["spec"].get("claimRef")):
                self._look(CLAIMS, f"{claim['namespace']}/{claim['name']}")

    def _look(self, kind: str, name: str) -> None:
        self.due[kind, name] = 0.0
        self.tries.pop((kind, name), None)

    def work(self, now: float) -> None:
        """Do what is due; what fails becomes due again later."""
        claims, volumes = self.known[CLAIMS], self.known[VOLUMES]
        if not self.begun:
            for hand in self.hands:
                hand.begin(list(claims.values()), list(volumes.values()))
            self.begun = True
        for what in [what for what, when in self.due.items() if when <= now]:
            del self.due[what]
            kind, name = what
            try:
                if kind == VOLUMES and name in volumes:
                    for hand in self.hands:
                        hand.volume(volumes[name])
                elif kind == CLAIMS and name in claims:
                    for hand in self.hands:
                        hand.claim(claims[name], volumes.get(volume_of(claims[name])))
            except (ApiError, OSError, http.client.HTTPException, ValueError, KeyError) as error:
                log.warning("%s %s: %r", kind, name, error)
                tried = self.tries[what] = self.tries.get(what, 0) + 1
                self.due[what] = now + RETRY[min(tried, len(RETRY)) - 1]


def key(thing: Object) -> str:
    metadata = thing["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else str(metadata["name"])


def volume_of(claim: Object) -> str:
    return str(claim["spec"].get("volumeName") or f"pvc-{claim['metadata']['uid']}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="pinnace-storage")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--shared", type=Path, help="given on the head: it looks after the shared volumes")
    parser.add_argument("--host-path", action="append", default=[], help="that claims may have, likewise (repeat)")
    words = parser.parse_args()
    threading.excepthook = end_with_thread
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    api = Api(words.kubeconfig)
    hands: list[Hand] = [PoolReconciler(api, Pool(provisioner=SCRATCH, node=words.node), Directories(words.scratch))]
    if words.shared:
        hands += [PoolReconciler(api, Pool(provisioner=SHARED), Directories(words.shared)), LostNodes(api)]
        hands += [HostPaths(api, words.host_path)]
    Provisioner(hands).run(words.kubeconfig)


if __name__ == "__main__":
    main()
