"""Events: what `kubectl describe` shows a user of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.kube.client import timestamp

if TYPE_CHECKING:
    from pinnace.kube.client import Api

    Object = dict[str, Any]

NORMAL, WARNING = "Normal", "Warning"  # the types that Kubernetes knows
MAX_MESSAGE = 1024  # characters; what Kubernetes' own recorder allows
MAX_NAME_STEM = 200  # characters of the object's name in that of its event, which gets a suffix


def event(thing: Object, kind: str, *, component: str, severity: str, reason: str, message: str) -> Object:
    """An Event about an object of the core API. Objects from a list do not say their ``kind``, so it is given."""
    metadata, now = thing["metadata"], timestamp()
    about = {name: metadata[name] for name in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name'][:MAX_NAME_STEM]}.", "namespace": metadata["namespace"]},
        "involvedObject": {"apiVersion": "v1", "kind": kind, **about},
        "type": severity,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def create_event(
    api: Api, thing: Object, kind: str, *, component: str, severity: str, reason: str, message: str
) -> None:
    """Show a message on an object."""
    body = event(thing, kind, component=component, severity=severity, reason=reason, message=message)
    api.request("POST", f"/api/v1/namespaces/{thing['metadata']['namespace']}/events", body)


class EventRecorder:
    """Warns about objects in the name of one component, and says the same of an object once."""

    def __init__(self, api: Api, component: str) -> None:
        self._api, self._component = api, component
        self._last: dict[str, str] = {}  # uid of an object: the last message about it

    def warn_once(self, thing: Object, kind: str, reason: str, message: str) -> None:
        uid = thing["metadata"]["uid"]
        if self._last.get(uid) != message:
            about = {"component": self._component, "severity": WARNING, "reason": reason, "message": message}
            create_event(self._api, thing, kind, **about)
            self._last[uid] = message
