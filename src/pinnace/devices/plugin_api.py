"""The messages between the kubelet and device plugins: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, api.proto."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.devices import protobuf
from pinnace.devices.protobuf import bytes_field, number_field, text_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION = "v1beta1"
DIRECTORY = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET = "kubelet.sock"
CHECKPOINT = "kubelet_internal_checkpoint"  # the kubelet's notes, which name the resources that it knows
REGISTER = f"/{VERSION}.Registration/Register"
PLUGIN = f"/{VERSION}.DevicePlugin/"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


@dataclass(frozen=True, kw_only=True)
class ListedDevice:
    """A device, as the kubelet is told of it."""

    id: str
    health: str = HEALTHY
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerAllocation:
    """What a container gets with its devices: variables, and CDI's names of them."""

    variables: dict[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PreferenceRequest:
    """Which ``size`` of these devices belong together? Those in ``included`` are among them."""

    available: list[str]
    included: list[str]
    size: int


def options() -> bytes:
    """DevicePluginOptions: we say which devices belong together, and need no call before a container starts."""
    return number_field(2, 1)


def register_request(resource: str, endpoint: str) -> bytes:
    return text_field(1, VERSION) + text_field(2, endpoint) + text_field(3, resource) + bytes_field(4, options())


def device_list(devices: Iterable[ListedDevice]) -> bytes:
    """ListAndWatchResponse."""

    def message(device: ListedDevice) -> bytes:
        about = text_field(1, device.id) + text_field(2, device.health)
        if device.numa_node is None:
            return about
        return about + bytes_field(3, bytes_field(1, number_field(1, device.numa_node)))

    return b"".join(bytes_field(1, message(device)) for device in devices)


def parse_allocate(request: bytes) -> list[list[str]]:
    """The devices of each container, from an AllocateRequest."""
    return [protobuf.texts(container, 1) for container in protobuf.messages(request, 1)]


def allocate_response(containers: Iterable[ContainerAllocation]) -> bytes:
    def message(container: ContainerAllocation) -> bytes:
        variables = (text_field(1, name) + text_field(2, value) for name, value in container.variables.items())
        names = (text_field(1, name) for name in container.cdi_devices)
        return b"".join([*(bytes_field(1, entry) for entry in variables), *(bytes_field(5, name) for name in names)])

    return b"".join(bytes_field(1, message(container)) for container in containers)


def parse_preference(request: bytes) -> list[PreferenceRequest]:
    """PreferredAllocationRequest."""
    return [
        PreferenceRequest(
            available=protobuf.texts(container, 1),
            included=protobuf.texts(container, 2),
            size=protobuf.number(container, 3),
        )
        for container in protobuf.messages(request, 1)
    ]


def preference_response(containers: Iterable[Sequence[str]]) -> bytes:
    return b"".join(bytes_field(1, b"".join(text_field(1, name) for name in names)) for names in containers)


def registered(directory: Path) -> set[str]:
    """The resources whose devices the kubelet knows, from its checkpoint."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        data = json.loads((directory / CHECKPOINT).read_text())["Data"]
        return set(data["RegisteredDevices"])
    return set()
