"""Conditions in the status of objects: made, read, and changed in a list of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinnace.kube.client import timestamp
from pinnace.validation import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    Object = dict[str, Any]


def condition(kind: str, status: str, reason: str, message: str = "", *, now: str = "") -> Object:
    """A condition of type ``kind`` that has just become so. Without a message it has no such field."""
    said = {"message": message} if message else {}
    return {"type": kind, "status": status, "reason": reason, **said, "lastTransitionTime": now or timestamp()}


def find(thing: Object, kind: str) -> Object:
    """The condition of that type; an empty one if the object has none."""
    return next((found for found in thing["status"].get("conditions", ()) if found["type"] == kind), {})


def is_true(thing: Object, kind: str) -> bool:
    """Whether an object has the condition of that type, and it holds."""
    return bool(find(thing, kind).get("status") == "True")


def with_condition(
    conditions: Sequence[Object], kind: str, status: str, reason: str, message: str = ""
) -> list[Object]:
    """The conditions with one of them changed or added. The time of transition changes only with the status."""
    known = [dict(found) for found in conditions]
    new = condition(kind, status, reason) | {"message": printable(message)}
    for found in known:
        if found["type"] == kind:
            if found["status"] == status:
                new["lastTransitionTime"] = found["lastTransitionTime"]
            found.update(new)
            return known
    return [*known, new]
