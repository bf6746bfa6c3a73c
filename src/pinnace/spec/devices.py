"""What a node offers to its pods beside CPUs and memory: GPUs and other devices, each under a name of Kubernetes'."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device, or one share of it. ``resource`` is what pods ask for, ``id`` is unique among its devices.

    ``files`` are the device files that a container gets with it. ``value`` stands for it in ``variables``, in which
    programs look for their devices. ``numa_node`` is where it is connected, if the kernel says so.
    """

    resource: str
    id: str
    files: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    value: str = ""
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceOffer:
    """All devices of a node. ``resources`` are their names, and those of which it shall say that it has none.

    ``mounts`` are files of the host that containers with a device of a resource get, by their paths in the container.
    """

    devices: tuple[Device, ...] = ()
    resources: tuple[str, ...] = ()
    mounts: dict[str, dict[str, str]] = field(default_factory=dict)

    def of(self, resource: str) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.resource == resource)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> DeviceOffer:
        def device(about: dict[str, Any]) -> Device:
            return Device(**about | {name: tuple(about[name]) for name in ("files", "variables")})

        devices = tuple(device(about) for about in data["devices"])
        return DeviceOffer(devices=devices, resources=tuple(data["resources"]), mounts=data["mounts"])
