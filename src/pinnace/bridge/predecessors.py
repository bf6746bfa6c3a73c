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
from pinnace.errors import ApiError, PinnaceError, UsageError
from pinnace.validation import api_name, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.connections import Slurms
    from pinnace.bridge.crds import Resource
    from pinnace.bridge.slurmjob import Job, Object
    from pinnace.kube.client import Api

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
            return self._step(resource, body, child)
        except UsageError as error:
            self._fail(resource, body, error.message)
            return None

    def _step(self, resource: Resource, body: Object, child: Job | None) -> float | None:
        spec = self._spec_of(resource, body)
        if child is None and ENDED & set((body.get("status") or {}).values()):
            return None  # its SlurmJob was deleted afterwards
        if child and not is_owned(child.metadata, body):
            raise UsageError(f"there is another SlurmJob called {child.name}")
        if resource is BRIDGEJOB:
            self._write_config_map(body, child)
        if child is None:
            self._create(resource, body, spec)
        elif spec.get("cancel") and not child.spec.get("cancel"):
            self._api().patch(child.path(), {"spec": {"cancel": True}})
        if child:
            of = bridgejob.status_of if resource is BRIDGEJOB else wlm.status_of
            self._write_status(resource, body, of(child))
        ended = child is not None and child.finished
        return float(spec["updateIntervalSeconds"]) if resource is BRIDGEJOB and not ended else None

    def _spec_of(self, resource: Resource, body: Object) -> Object:
        try:
            return bridgejob.spec_of(body) if resource is BRIDGEJOB else wlm.spec_of(body, self._known_features())
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise UsageError(str(error)) from error

    def _create(self, resource: Resource, body: Object, spec: Object) -> None:
        """Make the SlurmJob. One that the API does not take now it never will."""
        namespace, name = self.child_key(resource, body).split("/")
        child = {
            "apiVersion": SLURMJOB.api_version,
            "kind": SLURMJOB.kind,
            "metadata": {"name": name, "ownerReferences": [owner_of(body)]},
            "spec": spec,
        }
        try:
            self._api().create(SLURMJOB.path(namespace), child)
        except ApiError as error:
            if error.code not in {http.HTTPStatus.UNPROCESSABLE_ENTITY, http.HTTPStatus.BAD_REQUEST}:
                raise
            raise UsageError(str(error)) from error

    def _write_config_map(self, body: Object, child: Job | None) -> None:
        """Patched only where it differs. Whoever writes ``kill`` into it is heard, as with Bridge Operator.

        A map of that name that is not of this object is somebody else's, and left alone.
        """
        namespace, name = body["metadata"]["namespace"], bridgejob.config_map_name(body["metadata"]["name"])
        where, wanted = f"/api/v1/namespaces/{api_name(namespace)}/configmaps", bridgejob.config_data(body, child)
        there = self._api().get_or_none(f"{where}/{api_name(name)}")
        if there is None:
            metadata = {"name": name, "ownerReferences": [owner_of(body)]}
            about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": wanted}
            self._api().create(where, about)
            return
        if not is_owned(there["metadata"], body):
            raise UsageError(f"there is another ConfigMap called {name}")
        found = there.get("data") or {}
        if child and found.get("kill") == "true" and not child.finished and not child.spec.get("cancel"):
            self._api().patch(child.path(), {"spec": {"cancel": True}})
        if patch := changed(found, wanted):
            self._api().patch(f"{where}/{api_name(name)}", {"data": patch})

    def _fail(self, resource: Resource, body: Object, message: str) -> None:
        status = (
            {"jobstatus": "FAILED", "message": printable(message)} if resource is BRIDGEJOB else {"status": "Failed"}
        )
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


def is_owned(metadata: Object, body: Object) -> bool:
    """Whether an object was made for this one."""
    owners = metadata.get("ownerReferences") or ()
    return body["metadata"]["uid"] in {owner.get("uid") for owner in owners if owner.get("controller")}
