"""Looks up the addresses of nodes for which frames are queued.

A pod may send to every address of the fabric, and most of them belong to no node. One thread looks up all nodes, so
that an address scan costs a bounded table, and a node that exists is found at once beside it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Address = tuple[str, int]

MAX_LOOKUPS = 256  # at the same time; beyond, the oldest is given up
LOOKUP_TIMEOUT = 30.0  # seconds after which a lookup is given up
LOOKUP_INTERVAL = 0.1  # seconds between attempts, after the first


class Waiter(Protocol):
    """Waits for the address of a node."""

    peer: int

    def found(self) -> None:
        """The node has published its address."""

    def give_up(self) -> None:
        """There is no such node."""


class Lookup:
    """The pending lookups of a node. ``find`` gives the address of a node by its index, or None."""

    def __init__(self, find: Callable[[int], Address | None]) -> None:
        self._find = find
        self._waiters: dict[Waiter, float] = {}  # with their deadlines, oldest first
        self._new: list[Waiter] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True, name="lookup").start()

    def find(self, peer: int) -> Address | None:
        """The address of a node; None if it has not published one, or its record cannot be read."""
        try:
            return self._find(peer)
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def request(self, waiter: Waiter) -> None:
        """Look the waiter's peer up until it is found or given up."""
        with self._changed:
            surplus = next(iter(self._waiters)) if len(self._waiters) >= MAX_LOOKUPS else None
            if surplus:
                del self._waiters[surplus]
            self._waiters[waiter] = time.monotonic() + LOOKUP_TIMEOUT
            self._new.append(waiter)
            self._changed.notify()
        if surplus:
            surplus.give_up()

    def _run(self) -> None:
        due = 0.0
        while True:
            with self._changed:
                if not self._new:
                    self._changed.wait(max(0.0, due - time.monotonic()) if self._waiters else None)
                waiters, self._new = self._new, []
                if time.monotonic() >= due:
                    waiters, due = list(self._waiters), time.monotonic() + LOOKUP_INTERVAL
            for waiter in waiters:
                self._try(waiter)

    def _try(self, waiter: Waiter) -> None:
        is_found = self.find(waiter.peer) is not None
        with self._changed:
            deadline = self._waiters.get(waiter)
            if deadline is None or not (is_found or time.monotonic() > deadline):  # None: given up in the meantime
                return
            del self._waiters[waiter]
        if is_found:
            waiter.found()
        else:
            waiter.give_up()
