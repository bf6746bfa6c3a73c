"""What nodes that have left the cluster leave behind: volumes without data, and claims that wait for them.

Looked after on the head, because nobody else is left to do it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import SCRATCH
from pinnace.kube import nodes
from pinnace.storage import claims
from pinnace.storage.claims import Pool
from pinnace.storage.keeper import let_go

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinnace.kube.client import Api

    Object = dict[str, Any]

log = logging.getLogger(__name__)


class Departed:
    """The next step for scratch claims and volumes of nodes that are gone."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.pool = Pool(provisioner=SCRATCH)

    def begin(self, all_claims: Sequence[Object], volumes: Sequence[Object]) -> None:
        """Nothing is kept here."""

    def claim(self, claim: Object, volume: Object | None) -> None:
        """Let the scheduler choose again."""
        node = claims.selected_node(claim)
        if volume is None and node and self.pool.is_asked(claim) and self._is_gone(node):
            metadata = claim["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims/{metadata['name']}"
            self.api.patch(path, {"metadata": {"annotations": {claims.SELECTED_NODE: None}}})
            log.info("%s waits for %s no longer, which is gone", metadata["name"], node)

    def volume(self, volume: Object) -> None:
        """The data went with the node; the object follows when nothing is bound to it."""
        node = claims.node_of(volume)
        if node and self.pool.holds(volume) and claims.fate(volume) is not claims.Fate.STAYS and self._is_gone(node):
            let_go(self.api, volume)

    def _is_gone(self, node: str) -> bool:
        return self.api.get_or_none(nodes.path(node)) is None
