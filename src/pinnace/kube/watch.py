"""List and watch: all objects of a kind as they are now, and then every change of them.

The list is repeated from time to time. So a level-triggered controller sees everything again, whether or not it has
missed something.
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
from pinnace.kube.nesting import MAX_DEPTH, is_too_deep, loads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.kube.access import Access

RELIST_INTERVAL = 120  # seconds after which everything is listed anew
IDLE_LIMIT = RELIST_INTERVAL + 10.0  # seconds without an event after which a watch counts as lost: it should have ended
RETRY_DELAY = 0.1  # seconds before the next try when the API does not answer as it should; doubled each time,
MAX_RETRY_DELAY = 2.0  # up to this
MAX_LOGGED = 10_000  # objects that are remembered as logged

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
    access: Path | Access, kind: str, handler: Callable[[Listed | Changed], None], *, path: str = ""
) -> threading.Thread:
    """Call ``handler`` for ever, from a thread of its own. Without ``path``, ``kind`` is one of the core API."""
    arguments = (Api(access), kind, path or f"/api/v1/{kind}", handler)
    thread = threading.Thread(target=_list_and_watch_for_ever, args=arguments, name=kind, daemon=True)
    thread.start()
    return thread


def _list_and_watch_for_ever(api: Api, kind: str, path: str, handler: Callable[[Listed | Changed], None]) -> None:
    delay, is_usable = RETRY_DELAY, _DepthFilter(kind)
    while True:
        begun = time.monotonic()
        try:
            _list_and_watch(api, kind, path, handler, is_usable)
        except (*API_FAILURES, ValueError) as error:
            log.warning("watching %s: %s", kind, error or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - an answer that we do not understand is asked for again, as any other
            log.warning("watching %s: %r", kind, error)
        delay = RETRY_DELAY if time.monotonic() - begun > MAX_RETRY_DELAY else min(2 * delay, MAX_RETRY_DELAY)
        time.sleep(delay)


def _list_and_watch(
    api: Api, kind: str, path: str, handler: Callable[[Listed | Changed], None], is_usable: _DepthFilter
) -> None:
    listing = api.get(path)
    handler(Listed(kind=kind, objects=[thing for thing in listing["items"] if is_usable(thing)]))
    joint = "&" if "?" in path else "?"
    query = f"watch=true&timeoutSeconds={RELIST_INTERVAL}&resourceVersion={listing['metadata']['resourceVersion']}"
    for line in api.stream(f"{path}{joint}{query}", idle=IDLE_LIMIT):
        event = loads(line)
        if event["type"] == "ERROR":  # most often 410: what we know is too old to go on from
            raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
        if is_usable(event["object"]):
            handler(Changed(kind=kind, object=event["object"], gone=event["type"] == "DELETED"))


class _DepthFilter:
    """Whether an object is not nested too deeply for our code. One that is, is logged once and otherwise ignored.

    ``managedFields``, which nobody asks for, are removed before: they cannot make an object one that is ignored.
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
            if len(self._logged) >= MAX_LOGGED:
                self._logged.clear()
            self._logged.add(metadata["uid"])
            where = f"{metadata.get('namespace', '')}/{metadata['name']}"
            log.warning("%s %s is left alone: it has more than %d levels", self._kind, where, MAX_DEPTH)
        return False


def end_with_thread(about: threading.ExceptHookArgs) -> None:
    """For ``threading.excepthook``: end the process with any of its threads. It is started again, and watches again."""
    if isinstance(about.exc_value, PinnaceError):
        log.error("%s %s", about.exc_value.message, about.exc_value.hint)
    else:
        traceback.print_exception(about.exc_value)
    os._exit(1)
