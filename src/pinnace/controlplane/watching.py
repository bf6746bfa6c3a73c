"""All objects of a kind, as they are now and as they change: a list, then a watch, then again.

The list that begins every round is also the look at everything that a level-triggered controller needs from time to
time, whether or not something was missed.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.api import Api, ApiError
from pinnace.errors import PinnaceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pinnace.controlplane.access import Access

ROUND = 120  # seconds until everything is listed anew
PAUSE = 0.1  # seconds before the next try when the API does not answer, or not as it should
LONGEST_PAUSE = 2.0

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
    pause = PAUSE
    while True:
        begun = time.monotonic()
        try:
            _round(api, kind, path, tell)
        except (ApiError, OSError, http.client.HTTPException, ValueError) as error:
            log.warning("watching %s: %s", kind, error or type(error).__name__)
        pause = PAUSE if time.monotonic() - begun > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
        time.sleep(pause)


def _round(api: Api, kind: str, path: str, tell: Callable[[Listed | Changed], None]) -> None:
    listing = api.get(path)
    tell(Listed(kind=kind, objects=listing["items"]))
    joint = "&" if "?" in path else "?"
    query = f"watch=true&timeoutSeconds={ROUND}&resourceVersion={listing['metadata']['resourceVersion']}"
    for line in api.stream(f"{path}{joint}{query}", idle=ROUND + 10.0):
        event = json.loads(line)
        if event["type"] == "ERROR":  # most often 410: what we know is too old to go on from
            raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
        tell(Changed(kind=kind, object=event["object"], gone=event["type"] == "DELETED"))


def end_with_thread(about: threading.ExceptHookArgs) -> None:
    """For ``threading.excepthook``: whoever has gone deaf is worse than one that is started again."""
    if isinstance(about.exc_value, PinnaceError):
        log.error("%s %s", about.exc_value.message, about.exc_value.hint)
    else:
        traceback.print_exception(about.exc_value)
    os._exit(1)
