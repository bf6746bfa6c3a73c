"""What the API has said last about the objects of several kinds, from watches: client-go's store of an informer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pinnace.kube.watch import Listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pinnace.kube.watch import Changed

Object = dict[str, Any]


def namespaced_name(thing: Object) -> str:
    """``namespace/name``, or the name of what is in no namespace: a key that a later object of that name has, too."""
    metadata = thing["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def uid(thing: Object) -> str:
    """A key that no other object ever has."""
    return str(thing["metadata"]["uid"])


def is_same(one: Object, other: Object) -> bool:
    """Whether two of the same name are versions of one object, not one that was deleted and its successor."""
    return bool(one["metadata"].get("uid") == other["metadata"].get("uid"))


def resource_version(thing: Object) -> int:
    """Larger for a later version of the same object. Kubernetes promises that they can be compared."""
    return int(thing["metadata"].get("resourceVersion") or 0)


class Cache:
    """Objects by kind and key. ``slim`` may leave out of an object what nobody will ask for.

    Every method takes ``lock``. Whoever derives something from the cache that has to agree with it holds it longer.
    """

    def __init__(
        self,
        *kinds: str,
        key: Callable[[Object], str] = namespaced_name,
        slim: Callable[[Object], Object] = lambda thing: thing,
    ) -> None:
        self.lock = threading.RLock()
        self._key, self._slim = key, slim
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in kinds}
        self._listed: set[str] = set()
        self._synced = threading.Event()

    def __getitem__(self, kind: str) -> dict[str, Object]:
        """The objects of a kind by key, as they are now and change later."""
        return self._objects[kind]

    def get(self, kind: str, key: str) -> Object | None:
        with self.lock:
            return self._objects[kind].get(key)

    def keys(self, kind: str) -> list[str]:
        with self.lock:
            return list(self._objects[kind])

    def has_synced(self) -> bool:
        """Whether all kinds have been listed."""
        return self._synced.is_set()

    def wait_synced(self) -> None:
        self._synced.wait()

    def update(self, kind: str, thing: Object) -> bool:
        """Take an object as it is. False, and nothing is changed, if a later version of it is known.

        What a write has answered may be noted here before the watch tells of it.
        """
        thing["metadata"].pop("managedFields", None)  # large, and nobody asks for them
        small, key = self._slim(thing), self._key(thing)
        with self.lock:
            known = self._objects[kind].get(key)
            if known and is_same(known, thing) and resource_version(known) > resource_version(thing):
                return False
            self._objects[kind][key] = small
        return True

    def delete(self, kind: str, thing: Object) -> None:
        """Forget an object. A later one of the same name stays."""
        with self.lock:
            known = self._objects[kind].get(self._key(thing))
            if known and is_same(known, thing):
                del self._objects[kind][self._key(thing)]

    def missing(self, kind: str, listed: Collection[Object], *, namespace: str = "") -> list[Object]:
        """What is known of a kind, or of a kind in one namespace, and is not in a new list."""
        present = {self._key(thing) for thing in listed}
        with self.lock:
            return [
                thing
                for key, thing in self._objects[kind].items()
                if key not in present and namespace in {"", thing["metadata"].get("namespace")}
            ]

    def apply(self, change: Listed | Changed) -> list[Object]:
        """Take what a watch tells. The objects that are listed, have changed, or are gone."""
        if not isinstance(change, Listed):
            if change.gone:
                self.delete(change.kind, change.object)
            else:
                self.update(change.kind, change.object)
            return [change.object]
        with self.lock:
            gone = self.missing(change.kind, change.objects)
            for thing in gone:
                self.delete(change.kind, thing)
            for thing in change.objects:
                self.update(change.kind, thing)
            self._listed.add(change.kind)
            if self._listed == self._objects.keys():
                self._synced.set()
        return [*change.objects, *gone]
