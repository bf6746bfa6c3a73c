"""The root and volumes of a container, for its ranks: pure functions of its bundle and of mount tables."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.tasks import TASKS
from pinnace.errors import PinnaceError
from pinnace.sandbox.mountinfo import MountPoint, mount_points
from pinnace.sandbox.mounts import LOCAL_DIRECTORIES, VOLUMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SNAPSHOTS = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
KUBELET = LOCAL_DIRECTORIES["kubelet"]
WORLD_MOUNTS = ("/dev", "/proc", "/sys", "/run/pinnace")  # a world has its own
NAME_FILES = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}  # likewise: ranks are on the host's network
_VOLUME = re.compile(rf"{KUBELET}/pods/[^/]+/volumes/kubernetes\.io~([^/]+)/")
_COPIED = {"configmap", "secret", "projected", "downward-api"}


class VolumeKind(StrEnum):
    """How ranks on other hosts get a volume."""

    HOST = "host"  # at the same path
    EMPTY = "empty"  # each host has its own, empty at first
    COPIED = "copied"  # into the memory of each host, when the world is made
    FIRST = "first"  # not at all: it is on the first host alone


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume. ``source`` is its path in the node on the first host, ``host`` its path on the hosts."""

    kind: VolumeKind
    target: str
    source: str
    host: str = ""
    read_only: bool = False

    @staticmethod
    def from_json(data: dict[str, Any]) -> Volume:
        return Volume(**data | {"kind": VolumeKind(data["kind"])})


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container. ``root`` is its root's mount point in the node; ``lower`` and ``upper`` are the overlay's layers."""

    root: str
    lower: tuple[str, ...]
    upper: str
    read_only: bool
    volumes: tuple[Volume, ...]

    @property
    def image(self) -> str:
        """A name for the lower layers, which do not change while the node lives."""
        return hashlib.sha256("\0".join(self.lower).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"image": self.image}


def host_path(path: str, node: list[MountPoint], host: list[MountPoint]) -> str | None:
    """The path on the host of a path in the node; None if the host does not have it."""
    above = [point for point in node if _below(path, point.target)]
    if not above:
        return None
    here = max(reversed(above), key=lambda point: len(point.target))  # of equal targets the last mount is on top
    inside = _joined(here.root, _rest(path, here.target))
    seen = [point for point in host if point.device == here.device and _below(inside, point.root)]
    if not seen:
        return None
    there = max(seen, key=lambda point: (len(point.root), -len(point.target)))
    return _joined(there.target, _rest(inside, there.root))


def describe(identity: str, config: Mapping[str, Any], *, node: str, host: str, scratch: Path) -> ContainerSpec:
    """A container from its bundle's configuration and the mountinfo of the node and of its host."""
    points, outside = mount_points(node), mount_points(host)
    root = f"{TASKS}/{identity}/rootfs"
    found = [point for point in points if point.target == root and point.filesystem == "overlay"]
    if not found:
        raise PinnaceError("this container's root is no overlay, so its ranks cannot have it")
    lower, upper = layers(found[-1].options)
    return ContainerSpec(
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
        if (
            not {"bind", "rbind"} & set(options)
            or target in NAME_FILES
            or any(_below(target, own) for own in WORLD_MOUNTS)
        ):
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


def _kind(source: str, path: str | None, scratch: Path) -> VolumeKind:
    """For volumes in the node's scratch directory or in memory, the kubelet's path tells the type."""
    if path and _below(path, str(scratch / "volumes")):
        return VolumeKind.EMPTY
    name = source
    if path:
        if not _below(path, str(scratch)):
            return VolumeKind.HOST if not _below(source, VOLUMES) else VolumeKind.EMPTY
        name = _joined(KUBELET, _rest(path, str(scratch / "kubelet")))
    if found := _VOLUME.match(f"{name}/"):
        return (
            VolumeKind.COPIED
            if found[1] in _COPIED
            else VolumeKind.EMPTY
            if found[1] == "empty-dir"
            else VolumeKind.FIRST
        )
    return (
        VolumeKind.COPIED if "/volume-subpaths/" in source else VolumeKind.FIRST
    )  # of a Secret: those alone are in memory


def _below(path: str, top: str) -> bool:
    return top in {"/", path} or path.startswith(f"{top}/")


def _rest(path: str, top: str) -> str:
    return path[len(top) :].lstrip("/") if top != "/" else path.lstrip("/")


def _joined(top: str, rest: str) -> str:
    return f"{top.rstrip('/')}/{rest}" if rest else top
