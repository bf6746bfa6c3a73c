"""A limit on the number of connections, and the choice of a victim when it is exceeded.

The victim is the longest idle connection of the source that has most connections. So a source that opens thousands
evicts its own, and a connection in use outlives idle ones.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Item = TypeVar("Item")


class Quota(Generic[Item]):
    """A bounded set of items, each of which has a source."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_source: dict[Hashable, OrderedDict[Item, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self.limit

    def add(self, source: Hashable, item: Item) -> None:
        self._by_source.setdefault(source, OrderedDict())[item] = None
        self._count += 1

    def touch(self, source: Hashable, item: Item) -> None:
        """Mark an item as used now."""
        self._by_source[source].move_to_end(item)

    def discard(self, source: Hashable, item: Item) -> None:
        items = self._by_source.get(source)
        if items is not None and item in items:
            del items[item]
            self._count -= 1
            if not items:
                del self._by_source[source]

    def victim(self) -> Item | None:
        """The item to evict next."""
        largest = max(self._by_source.values(), key=len, default=None)
        return next(iter(largest)) if largest else None
