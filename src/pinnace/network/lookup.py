"""Finding the nodes that frames are waiting for.

A pod may send to every address of the fabric, and most of them are nobody's. One thread looks for all nodes that are
wanted, so that such a scan costs a bounded table, and a node that is really there is found beside it at once.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Address = tuple[str, int]

MOST_WANTED = 256  # nodes that are looked for at the same time; the one that was looked for longest is given up
LIMIT = 30.0  # seconds after which a node is given up
INTERVAL = 0.1  # seconds between looks for those that were not there at first


class Wanted(Protocol):
    """Who waits for a node."""

    peer: int

    def found(self) -> None:
        """The node has said where it is."""

    def give_up(self) -> None:
        """There is no such node."""


class Lookup:
    """Looks for nodes. ``find`` says where one is, or None."""

    def __init__(self, find: Callable[[int], Address | None]) -> None:
        self._find = find
        self._wanted: dict[Wanted, float] = {}  # with the time at which each is given up, the oldest first
        self._new: list[Wanted] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True, name="lookup").start()

    def find(self, peer: int) -> Address | None:
        """Where a node is; None if it has not said so, or nobody can read it."""
        try:
            return self._find(peer)
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def want(self, wanted: Wanted) -> None:
        """Look for a node until it is found, or given up."""
        with self._changed:
            surplus = next(iter(self._wanted)) if len(self._wanted) >= MOST_WANTED else None
            if surplus:
                del self._wanted[surplus]
            self._wanted[wanted] = time.monotonic() + LIMIT
            self._new.append(wanted)
            self._changed.notify()
        if surplus:
            surplus.give_up()

    def _run(self) -> None:
        due = 0.0
        while True:
            with self._changed:
                if not self._new:
                    self._changed.wait(max(0.0, due - time.monotonic()) if self._wanted else None)
                wanted, self._new = self._new, []
                if time.monotonic() >= due:
                    wanted, due = list(self._wanted), time.monotonic() + INTERVAL
            for one in wanted:
                self._look(one)

    def _look(self, wanted: Wanted) -> None:
        there = self.find(wanted.peer) is not None
        with self._changed:
            deadline = self._wanted.get(wanted)
            if deadline is None or not (there or time.monotonic() > deadline):  # None: it was given up meanwhile
                return
            del self._wanted[wanted]
        if there:
            wanted.found()
        else:
            wanted.give_up()
