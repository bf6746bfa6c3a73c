"""Events of claims that cannot be satisfied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.kube.client import timestamp
from pinnace.storage import claims

if TYPE_CHECKING:
    from pinnace.kube.client import Api

    Object = dict[str, Any]


class RefusalEvents:
    """Reports why claims are refused as Kubernetes events, each reason once."""

    def __init__(self, api: Api, provisioner: str) -> None:
        self._api = api
        self._provisioner = provisioner
        self._reported: dict[str, str] = {}  # by the UID of the claim

    def report(self, claim: Object, reason: str) -> None:
        uid, namespace = claim["metadata"]["uid"], claim["metadata"]["namespace"]
        if self._reported.get(uid) != reason:
            event = claims.refusal_event(claim, self._provisioner, reason, timestamp())
            self._api.request("POST", f"/api/v1/namespaces/{namespace}/events", event)
            self._reported[uid] = reason
