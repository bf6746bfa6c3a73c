"""All objects of a kind, as they are now and as they change: a list, then a watch, then again.

The list that begins every round is also the look at everything that a level-triggered controller needs from time to
time, whether or not something was missed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.errors import ApiError, PinnaceError
from pinnace.kube.client import API_FAILURES, Api
from pinnace.kube.nesting import DEEPEST, is_too_deep, loads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.kube.access import Access

ROUND = 120  # seconds until everything is listed anew
PAUSE = 0.1  # seconds before the next try when the API does not answer, or not as it should
LONGEST_PAUSE = 2.0
REMEMBERED = 10_000  # objects of which we know that they have been logged

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """All objects of a kind."""

    kind: str
    objects: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Changed:
    """One object, as it is now, or as it was when it went."""

    kind: str
    object: dict[str, Any]
    gone: bool


def watch(
    access: Path | Access, kind: str, tell: Callable[[Listed | Changed], None], *, path: str = ""
) -> threading.Thread:
    """Tell of all objects of a kind for ever, from a thread of its own. ``path`` is that of the core API without it."""
    arguments = (Api(access), kind, path or f"/api/v1/{kind}", tell)
    thread = threading.Thread(target=_rounds, args=arguments, name=kind, daemon=True)
    thread.start()
    return thread


def _rounds(api: Api, kind: str, path: str, tell: Callable[[Listed | Changed], None]) -> None:
    pause, usable = PAUSE, _Usable(kind)
    while True:
        begun = time.monotonic()
        try:
            _round(api, kind, path, tell, usable)
        except (*API_FAILURES, ValueError) as error:
            log.warning("watching %s: %s", kind, error or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - an answer that we do not understand is asked for again, as any other
            log.warning("watching %s: %r", kind, error)
        pause = PAUSE if time.monotonic() - begun > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
        time.sleep(pause)


def _round(api: Api, kind: str, path: str, tell: Callable[[Listed | Changed], None], usable: _Usable) -> None:
    listing = api.get(path)
    tell(Listed(kind=kind, objects=[thing for thing in listing["items"] if usable(thing)]))
    joint = "&" if "?" in path else "?"
    query = f"watch=true&timeoutSeconds={ROUND}&resourceVersion={listing['metadata']['resourceVersion']}"
    for line in api.stream(f"{path}{joint}{query}", idle=ROUND + 10.0):
        event = loads(line)
        if event["type"] == "ERROR":  # most often 410: what we know is too old to go on from
            raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
        if usable(event["object"]):
            tell(Changed(kind=kind, object=event["object"], gone=event["type"] == "DELETED"))


class _Usable:
    """Whether our code can walk through an object. One that it cannot is as if it were not there, and logged once.

    ``managedFields``, which nobody asks for, are taken out before: an object of ours cannot be hidden by them.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._logged: set[str] = set()  # uids

    def __call__(self, thing: dict[str, Any]) -> bool:
        metadata = thing["metadata"]
        metadata.pop("managedFields", None)
        if not is_too_deep(thing):
            return True
        if metadata["uid"] not in self._logged:
            if len(self._logged) >= REMEMBERED:
                self._logged.clear()
            self._logged.add(metadata["uid"])
            where = f"{metadata.get('namespace', '')}/{metadata['name']}"
            log.warning("%s %s is left alone: it has more than %d levels", self._kind, where, DEEPEST)
        return False


def end_with_thread(about: threading.ExceptHookArgs) -> None:
    """For ``threading.excepthook``: whoever has gone deaf is worse than one that is started again."""
    if isinstance(about.exc_value, PinnaceError):
        log.error("%s %s", about.exc_value.message, about.exc_value.hint)
    else:
        traceback.print_exception(about.exc_value)
    os._exit(1)
