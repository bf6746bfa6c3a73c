"""How many connections there may be at a time, and which has to go when there are more.

It is the one that was idle longest among those of the source that has most. So whoever opens thousands of connections
pays for them himself, and a connection that is in use outlives those that are only held.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Item = TypeVar("Item")


class Quota(Generic[Item]):
    """A bounded set of things, each of which has a source."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_source: dict[Hashable, OrderedDict[Item, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self.most

    def add(self, source: Hashable, item: Item) -> None:
        self._by_source.setdefault(source, OrderedDict())[item] = None
        self._count += 1

    def touch(self, source: Hashable, item: Item) -> None:
        """It is in use."""
        self._by_source[source].move_to_end(item)

    def discard(self, source: Hashable, item: Item) -> None:
        items = self._by_source.get(source)
        if items is not None and item in items:
            del items[item]
            self._count -= 1
            if not items:
                del self._by_source[source]

    def victim(self) -> Item | None:
        """The one that has to go."""
        most = max(self._by_source.values(), key=len, default=None)
        return next(iter(most)) if most else None
