"""A container as its ranks shall find it: pure functions of what containerd, the kubelet and the kernel say of it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pinnace.errors import PinnaceError
from pinnace.sandbox.mountinfo import MountPoint, mount_points
from pinnace.sandbox.mounts import LOCAL_DIRECTORIES, VOLUMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TASKS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
SNAPSHOTS = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
KUBELET = LOCAL_DIRECTORIES["kubelet"]
OWN = ("/dev", "/proc", "/sys", "/run/pinnace")  # a world has its own
NAMES = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}  # likewise: ranks are on the host's network
_VOLUME = re.compile(rf"{KUBELET}/pods/[^/]+/volumes/kubernetes\.io~([^/]+)/")
_COPIED = {"configmap", "secret", "projected", "downward-api"}


class Kind(StrEnum):
    """Where ranks on other hosts find a volume."""

    HOST = "host"  # at the same path
    EMPTY = "empty"  # each host has its own, empty at first
    COPIED = "copied"  # in the memory of each host, as it is when they start
    FIRST = "first"  # nowhere: it is the first host's alone


@dataclass(frozen=True, kw_only=True)
class Volume:
    """``source`` is the path in the first host's node, ``host`` that on a host."""

    kind: Kind
    target: str
    source: str
    host: str = ""
    read_only: bool = False

    @staticmethod
    def from_json(data: dict[str, Any]) -> Volume:
        return Volume(**data | {"kind": Kind(data["kind"])})


@dataclass(frozen=True, kw_only=True)
class Container:
    """``root`` is where its root is mounted in the node; ``lower`` and ``upper`` are what that consists of."""

    root: str
    lower: tuple[str, ...]
    upper: str
    read_only: bool
    volumes: tuple[Volume, ...]

    @property
    def image(self) -> str:
        """A name for what does not change while the node lives."""
        return hashlib.sha256("\0".join(self.lower).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"image": self.image}


def host_path(path: str, node: list[MountPoint], host: list[MountPoint]) -> str | None:
    """What a path in the node is called on its host; None if the host does not see it."""
    above = [point for point in node if _below(path, point.target)]
    if not above:
        return None
    here = max(reversed(above), key=lambda point: len(point.target))  # of equals the last counts: it is on top
    inside = _joined(here.root, _rest(path, here.target))
    seen = [point for point in host if point.device == here.device and _below(inside, point.root)]
    if not seen:
        return None
    there = max(seen, key=lambda point: (len(point.root), -len(point.target)))
    return _joined(there.target, _rest(inside, there.root))


def describe(identity: str, config: Mapping[str, Any], *, node: str, host: str, scratch: Path) -> Container:
    """A container from its bundle's configuration, and the tables of mounts of the node and of its host."""
    points, outside = mount_points(node), mount_points(host)
    root = f"{TASKS}/{identity}/rootfs"
    found = [point for point in points if point.target == root and point.filesystem == "overlay"]
    if not found:
        raise PinnaceError("this container's root is no overlay, so its ranks cannot have it")
    lower, upper = layers(found[-1].options)
    return Container(
        root=root,
        lower=lower,
        upper=upper,
        read_only=bool(config.get("root", {}).get("readonly")),
        volumes=tuple(_volumes(config, points, outside, scratch)),
    )


def layers(options: str) -> tuple[tuple[str, ...], str]:
    """The read-only directories of an overlay, topmost first, and its writable one."""
    lower: list[str] = []
    upper = ""
    for option in options.split(","):
        name, _, value = option.partition("=")
        if name == "lowerdir":
            lower += value.split(":")
        elif name == "lowerdir+":
            lower.append(value)
        elif name == "upperdir":
            upper = value
    return tuple(_joined(SNAPSHOTS, path) if path[0] != "/" else path for path in lower), (
        upper if upper.startswith("/") else _joined(SNAPSHOTS, upper)
    )


def _volumes(
    config: Mapping[str, Any], node: list[MountPoint], host: list[MountPoint], scratch: Path
) -> Iterator[Volume]:
    for mount in config.get("mounts", ()):
        target, options = mount["destination"], mount.get("options", ())
        if not {"bind", "rbind"} & set(options) or target in NAMES or any(_below(target, own) for own in OWN):
            continue
        source = mount["source"]
        path = host_path(source, node, host)
        yield Volume(
            kind=_kind(source, path, scratch),
            target=target,
            source=source,
            host=path or source,
            read_only="ro" in options,
        )


def _kind(source: str, path: str | None, scratch: Path) -> Kind:
    """Of what is on the node's own disk, or in its memory, the kubelet's names tell what it is."""
    if path and _below(path, str(scratch / "volumes")):
        return Kind.EMPTY
    name = source
    if path:
        if not _below(path, str(scratch)):
            return Kind.HOST if not _below(source, VOLUMES) else Kind.EMPTY
        name = _joined(KUBELET, _rest(path, str(scratch / "kubelet")))
    if found := _VOLUME.match(f"{name}/"):
        return Kind.COPIED if found[1] in _COPIED else Kind.EMPTY if found[1] == "empty-dir" else Kind.FIRST
    return Kind.COPIED if "/volume-subpaths/" in source else Kind.FIRST  # of a Secret: those alone are in memory


def _below(path: str, top: str) -> bool:
    return top in {"/", path} or path.startswith(f"{top}/")


def _rest(path: str, top: str) -> str:
    return path[len(top) :].lstrip("/") if top != "/" else path.lstrip("/")


def _joined(top: str, rest: str) -> str:
    return f"{top.rstrip('/')}/{rest}" if rest else top
