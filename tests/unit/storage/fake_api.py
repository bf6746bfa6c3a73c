"""The part of the API that the provisioner speaks to, in memory. It fails on what it does not know."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

from pinnace.errors import ApiError
from pinnace.kube.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable

    Object = dict[str, Any]

PATHS = re.compile(
    r"/api/v1/(persistentvolumes|nodes)|/apis/storage.k8s.io/v1/(storageclasses)"
    r"|/api/v1/namespaces/default/(persistentvolumeclaims|events)"
)


class FakeApi(Api):
    """Objects by resource and name. ``before`` is called before each request, and may raise instead of us."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.objects: dict[str, dict[str, Object]] = {}
        self.before = before
        self.version = 100

    def put(self, resource: str, thing: Object) -> None:
        self.objects.setdefault(resource, {})[thing["metadata"]["name"]] = copy.deepcopy(thing)

    def all(self, resource: str) -> list[Object]:
        return copy.deepcopy(list(self.objects.get(resource, {}).values()))

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
        self.before()
        found = PATHS.match(path)
        assert found, f"unknown path {path}"
        resource = next(filter(None, found.groups()))
        name = path[found.end() :].strip("/").removesuffix("/status")
        thing = json.loads(json.dumps(body))
        known = self.objects.setdefault(resource, {})
        if method == "POST":
            name = thing["metadata"].get("name") or f"{thing['metadata']['generateName']}{len(known)}"
            if name in known:
                raise ApiError(409, "exists")
            thing["metadata"] |= {"name": name, "resourceVersion": self._next()}
            known[name] = thing
        elif name not in known:
            raise ApiError(404, path)
        elif method == "DELETE":
            known[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        elif method == "PATCH":
            assert content_type == "application/merge-patch+json"
            if thing.get("metadata", {}).get("resourceVersion", "") not in {
                "",
                known[name]["metadata"]["resourceVersion"],
            }:
                raise ApiError(409, "changed since")
            merge(known[name], thing)
            known[name]["metadata"]["resourceVersion"] = self._next()
        else:
            assert method == "GET", method
        answer = copy.deepcopy(known[name])
        if "deletionTimestamp" in answer["metadata"] and not answer["metadata"].get("finalizers"):
            del known[name]
        return answer

    def _next(self) -> str:
        self.version += 1
        return str(self.version)


def merge(target: Object, patch: Object) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
