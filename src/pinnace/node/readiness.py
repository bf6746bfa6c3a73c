"""What services wait for before they start: questions that are asked again and again until the answer is yes."""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_TIMEOUT = 1.0  # seconds to wait for an answer before it is tried anew


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
    """Whether something answers there. Nobody waits for the answer: it is looked for when this is asked again."""
    call: socket.socket | None = None
    patience = after(0.0)

    def connect() -> bool:
        nonlocal call, patience
        if call is None:
            call, patience = socket.socket(), after(CONNECT_TIMEOUT)
            call.setblocking(False)
            if call.connect_ex((host, port)) not in {0, errno.EINPROGRESS}:  # there is no network yet
                call.close()
                call = None
                return False
        _, answered, _ = select.select([], [call], [], 0)
        if not answered and not patience():
            return False
        heard = bool(answered) and not call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        call.close()
        call = None
        return heard

    return once(connect)
