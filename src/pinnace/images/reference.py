"""References to images: short names, as users write them, and full ones.

busybox                 docker.io/library/busybox:latest
ghcr.io/a/b:1           ghcr.io/a/b:1
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinnace.errors import ImageError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# The grammar of github.com/distribution/reference, without digests and IPv6 addresses.
REGISTRY = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]+)?")
COMPONENT = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A full reference."""

    registry: str
    path: str
    tag: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.path}:{self.tag}"

    @property
    def repository(self) -> str:
        """The repository in our registry. A colon is not allowed in it, and no registry's name has underscores."""
        return f"{self.registry.replace(':', '__')}/{self.path}"

    @staticmethod
    def of_repository(repository: str, tag: str) -> Reference:
        registry, _, path = repository.partition("/")
        return Reference(registry=registry.replace("__", ":"), path=path, tag=tag)


def parse(text: str) -> Reference:
    """Parse a reference as Docker and Kubernetes do."""
    first, slash, rest = text.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = "docker.io", text
    if first == "index.docker.io":
        first = "docker.io"
    path, _, tag = rest.partition(":")
    if first == "docker.io" and "/" not in path:
        path = f"library/{path}"
    tag = tag or "latest"
    if not (REGISTRY.fullmatch(first) and all(map(COMPONENT.fullmatch, path.split("/"))) and TAG.fullmatch(tag)):
        raise ImageError(f"{text!r} is no name of an image", hint="A name is like docker.io/library/busybox:1.")
    return Reference(registry=first.lower(), path=path, tag=tag)
