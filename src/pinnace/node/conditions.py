"""What services wait for before they start: questions that are asked again and again until the answer is yes."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def after(delay: float) -> Callable[[], bool]:
    """Whether so many seconds are over: for what nobody waits for while a cluster starts."""
    begin = time.monotonic()
    return lambda: time.monotonic() >= begin + delay


def once(ask: Callable[[], bool]) -> Callable[[], bool]:
    """The answer, which is not asked for again when it was yes."""
    seen = False

    def look() -> bool:
        nonlocal seen
        seen = seen or ask()
        return seen

    return look


def listening(host: str, port: int) -> Callable[[], bool]:
    """Whether something answers there."""

    def connect() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return True
        return False

    return once(connect)
