"""Scratch volumes and claims of nodes that have left the cluster: volumes without data, and claims that wait for them.

The head cleans them up, because the provisioner of such a node is gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import SCRATCH
from pinnace.kube import nodes
from pinnace.storage import claims
from pinnace.storage.claims import Pool
from pinnace.storage.pool_reconciler import delete_volume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.kube.client import Api

    Object = dict[str, Any]

log = logging.getLogger(__name__)


class LostNodes:
    """Reconciles scratch claims and volumes of nodes that are gone."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.pool = Pool(provisioner=SCRATCH)

    def begin(self, all_claims: Sequence[Object], volumes: Sequence[Object]) -> None:
        """Nothing to recover."""

    def claim(self, claim: Object, volume: Object | None) -> None:
        """Remove the selected node from a claim, so that the scheduler chooses again."""
        node = claims.selected_node(claim)
        if volume is None and node and self.pool.serves(claim) and self._is_gone(node):
            metadata = claim["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims/{metadata['name']}"
            self.api.patch(path, {"metadata": {"annotations": {claims.SELECTED_NODE: None}}})
            log.info("%s waits for %s no longer, which is gone", metadata["name"], node)

    def volume(self, volume: Object) -> None:
        """Delete the object of a volume that is not bound: its data went with the node."""
        node = claims.node_of(volume)
        if node and self.pool.owns(volume) and claims.fate(volume) is not claims.Fate.KEEP and self._is_gone(node):
            delete_volume(self.api, volume)

    def _is_gone(self, node: str) -> bool:
        return self.api.get_or_none(nodes.path(node)) is None
