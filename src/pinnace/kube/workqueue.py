"""A work queue for controllers, with the operations of client-go's: what is to be reconciled, and when.

A key stands for an object: its kind, and its name with its namespace. A key that is added several times is handed out
once. No key is handed out twice at the same time; one that is added while somebody works on it is handed out again when
that is done. What fails is added again, later each time.
"""

from __future__ import annotations

import collections
import heapq
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Sequence

Key = tuple[str, str]  # a kind, and "namespace/name"; or "name" for what is in no namespace
MAX_DELAY = 3600.0  # seconds after which a key is handed out, however much later it was to be

K = TypeVar("K", bound="Hashable")


class Backoff(Generic[K]):
    """How long to wait before something is tried again: longer after each failure, up to the last of ``delays``."""

    def __init__(self, delays: Sequence[float]) -> None:
        self._delays = delays
        self._failures: dict[K, int] = {}

    def next_delay(self, key: K) -> float:
        """Count a failure. Seconds until the next try."""
        failed = self._failures[key] = self.failures(key) + 1
        return self._delays[min(failed, len(self._delays)) - 1]

    def failures(self, key: K) -> int:
        """How often something has failed since it was last forgotten."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Begin again with the shortest delay."""
        self._failures.pop(key, None)

    def forget_others(self, keys: Container[K]) -> None:
        """Forget everything but these."""
        self._failures = {key: failed for key, failed in self._failures.items() if key in keys}


class WorkQueue:
    """Namespaces take turns, however many keys one of them has.

    At most ``per_namespace`` workers are busy with one namespace: what is slow there holds up no others.
    """

    def __init__(self, retry_delays: Sequence[float], *, per_namespace: int = 1) -> None:
        self._ready = threading.Condition()
        self._backoff = Backoff[Key](retry_delays)
        self._per_namespace = per_namespace
        self._due: dict[Key, float] = {}  # when; of those that wait for a worker, -inf
        self._heap: list[tuple[float, Key]] = []
        self._waiting: collections.OrderedDict[str, collections.deque[Key]] = collections.OrderedDict()
        self._processing: set[Key] = set()
        self._busy: collections.Counter[str] = collections.Counter()  # workers by namespace
        self._dirty: set[Key] = set()  # added while they were worked on
        self._shut_down = False

    def __len__(self) -> int:
        """How many keys are to be handed out, now or later."""
        with self._ready:
            return len(self._due.keys() | self._dirty)

    def add(self, key: Key) -> None:
        """Have a key handed out as soon as possible."""
        self.add_after(key, 0.0)

    def add_after(self, key: Key, delay: float) -> None:
        """Have a key handed out after so many seconds; earlier if it was to be earlier anyway.

        Objects ask for delays of any length, and ``Condition.wait`` raises OverflowError for those of some centuries.
        """
        with self._ready:
            when = time.monotonic() + min(delay, MAX_DELAY)
            if when < self._due.get(key, float("inf")):
                self._due[key] = when
                heapq.heappush(self._heap, (when, key))
                self._ready.notify()

    def add_rate_limited(self, key: Key) -> None:
        """Count a failure, and have the key handed out again after a delay that grows with their number."""
        with self._ready:
            self.add_after(key, self._backoff.next_delay(key))

    def num_requeues(self, key: Key) -> int:
        """How many failures of a key were counted since it was last forgotten."""
        with self._ready:
            return self._backoff.failures(key)

    def forget(self, key: Key) -> None:
        """Forget the failures of a key: it has succeeded, or has changed."""
        with self._ready:
            self._backoff.forget(key)

    def get(self, timeout: float | None = None) -> Key | None:
        """Wait for a key that is due. ``done`` must follow. None if there is none within ``timeout`` seconds."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        with self._ready:
            while True:
                self._collect_due()
                if not self._shut_down and (key := self._next()):
                    return key
                if time.monotonic() >= deadline:
                    return None
                next_due = self._heap[0][0] if self._heap and not self._shut_down else float("inf")
                wake = min(deadline, next_due)
                self._ready.wait(None if wake == float("inf") else max(0.0, wake - time.monotonic()))

    def _collect_due(self) -> None:
        """Sort what is due by namespace."""
        while self._heap and self._heap[0][0] <= time.monotonic():
            when, key = heapq.heappop(self._heap)
            if self._due.get(key) != when:
                continue  # it was brought forward
            self._due[key] = float("-inf")
            self._waiting.setdefault(namespace_of(key), collections.deque()).append(key)

    def _next(self) -> Key | None:
        """A key of the namespace that has waited longest, of those that have not too many workers already."""
        for namespace, keys in self._waiting.items():
            if self._busy[namespace] >= self._per_namespace:
                continue
            key = keys.popleft()
            del self._due[key]
            self._waiting.move_to_end(namespace)
            if not keys:
                del self._waiting[namespace]
            if key in self._processing:
                self._dirty.add(key)
                return self._next()
            self._processing.add(key)
            self._busy[namespace] += 1
            return key
        return None

    def done(self, key: Key) -> None:
        """Say that the work on a key has ended, however it ended."""
        with self._ready:
            self._processing.discard(key)
            namespace = namespace_of(key)
            self._busy[namespace] -= 1
            if not self._busy[namespace]:
                del self._busy[namespace]
            if key in self._dirty:
                self._dirty.discard(key)
                self.add(key)
            self._ready.notify_all()

    def shut_down(self, limit: float) -> None:
        """Hand out nothing any more, and wait up to ``limit`` seconds for the work that is under way."""
        with self._ready:
            self._shut_down = True
            self._ready.wait_for(lambda: not self._processing, limit)

    def process_next(
        self,
        reconcile: Callable[[Key], float | None],
        failed: Callable[[Key, Exception], None],
        *,
        timeout: float | None = None,
    ) -> bool:
        """Reconcile the next key that is due; False if there was none within ``timeout`` seconds.

        ``reconcile`` returns after how many seconds it wants to see the key again, or None. Whatever it raises is told
        to ``failed``, and the key is tried again, later each time: an object that nobody understands stops no others.
        """
        key = self.get(timeout)
        if key is None:
            return False
        try:
            delay = reconcile(key)
        except Exception as error:  # noqa: BLE001
            failed(key, error)
            self.add_rate_limited(key)
        else:
            self.forget(key)
            if delay is not None:
                self.add_after(key, delay)
        finally:
            self.done(key)
        return True


def namespace_of(key: Key) -> str:
    """The namespace of an object; empty if it is in none."""
    namespace, slash, _ = key[1].partition("/")
    return namespace if slash else ""
