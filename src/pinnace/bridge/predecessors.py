"""The predecessors' objects: each becomes a SlurmJob of which it is the owner, and shows how that one is.

Deleting one deletes its SlurmJob, whose finalizer ends the job in Slurm. Nothing is implemented twice.
"""

from __future__ import annotations

import http
import time
from typing import TYPE_CHECKING

from pinnace.bridge import bridgejob, wlm
from pinnace.bridge.crds import BRIDGEJOB, SLURMJOB
from pinnace.bridge.slurmjob import changed, owner_of
from pinnace.controlplane.api import ApiError
from pinnace.errors import PinnaceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.crds import Resource
    from pinnace.bridge.slurmjob import Job, Object
    from pinnace.bridge.slurms import Slurms
    from pinnace.controlplane.api import Api

ENDED = {"DONE", "FAILED", "KILLED", "UNKNOWN", "Succeeded", "Failed"}
FRESH = 60.0  # seconds for which the features of a cluster are not asked for again


class Predecessors:
    """The next step for a BridgeJob, or for a SlurmJob or WlmJob of WLM's."""

    def __init__(self, api: Callable[[], Api], slurms: Slurms) -> None:
        self._api, self._slurms = api, slurms
        self._features: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    @staticmethod
    def child_key(resource: Resource, body: Object) -> str:
        name = body["metadata"]["name"]
        child = bridgejob.child_name(name) if resource is BRIDGEJOB else wlm.child_name(body)
        return f"{body['metadata']['namespace']}/{child}"

    def step(self, resource: Resource, body: Object, child: Job | None) -> float | None:
        """Seconds until it should be looked at again: somebody may write into a BridgeJob's ConfigMap at any time."""
        if "deletionTimestamp" in body["metadata"]:
            return None  # the garbage collector deletes what it owns
        try:
            spec = bridgejob.spec_of(body) if resource is BRIDGEJOB else wlm.spec_of(body, self._known_features())
        except (UsageError, ValueError, TypeError, AttributeError) as error:
            self._fail(resource, body, str(error))
            return None
        if child is None:
            if ENDED & set((body.get("status") or {}).values()):
                return None  # its SlurmJob was deleted afterwards
            self._create(resource, body, spec)
        elif child.metadata.get("ownerReferences", [{}])[0].get("uid") != body["metadata"]["uid"]:
            self._fail(resource, body, f"there is another SlurmJob called {child.name}")
            return None
        elif spec.get("cancel") and not child.spec.get("cancel"):
            self._api().patch(child.path(), {"spec": {"cancel": True}})
        if resource is BRIDGEJOB:
            self._write_config_map(body, child)
        if child:
            of = bridgejob.status_of if resource is BRIDGEJOB else wlm.status_of
            self._write_status(resource, body, of(child))
        ended = child is not None and child.finished
        return float(spec["updateIntervalSeconds"]) if resource is BRIDGEJOB and not ended else None

    def _create(self, resource: Resource, body: Object, spec: Object) -> None:
        namespace, name = self.child_key(resource, body).split("/")
        child = {
            "apiVersion": SLURMJOB.api_version,
            "kind": SLURMJOB.kind,
            "metadata": {"name": name, "ownerReferences": [owner_of(body)]},
            "spec": spec,
        }
        self._api().create(SLURMJOB.path(namespace), child)

    def _write_config_map(self, body: Object, child: Job | None) -> None:
        """Patched only where it differs. Whoever writes ``kill`` into it is heard, as with Bridge Operator."""
        namespace, name = body["metadata"]["namespace"], bridgejob.config_map_name(body["metadata"]["name"])
        where, wanted = f"/api/v1/namespaces/{namespace}/configmaps", bridgejob.config_data(body, child)
        try:
            found = self._api().get(f"{where}/{name}").get("data") or {}
        except ApiError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            metadata = {"name": name, "ownerReferences": [owner_of(body)]}
            about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": wanted}
            self._api().create(where, about)
            return
        if child and found.get("kill") == "true" and not child.finished and not child.spec.get("cancel"):
            self._api().patch(child.path(), {"spec": {"cancel": True}})
        if patch := changed(found, wanted):
            self._api().patch(f"{where}/{name}", {"data": patch})

    def _fail(self, resource: Resource, body: Object, message: str) -> None:
        status = {"jobstatus": "FAILED", "message": message} if resource is BRIDGEJOB else {"status": "Failed"}
        self._write_status(resource, body, status)

    def _write_status(self, resource: Resource, body: Object, status: Object) -> None:
        if patch := changed(body.get("status") or {}, status):
            metadata = body["metadata"]
            path = resource.path(metadata["namespace"], metadata["name"], "status")
            self._api().patch(path, {"status": patch})

    def _known_features(self) -> frozenset[str]:
        """Of the Slurm that jobs go to that say nothing: the command line's."""
        when, features = self._features
        if time.monotonic() - when > FRESH and (connection := self._slurms.first()):
            try:
                features = frozenset(word for found in connection.backend.partitions() for word in found.features)
            except PinnaceError:
                return features
            self._features = (time.monotonic(), features)
        return features
