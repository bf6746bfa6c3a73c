"""The device plugin of a node: offers what Slurm gave to the job to the kubelet, which hands it to containers.

    python -m pinnace.devices.plugin FILE

FILE has the DeviceOffer as JSON. Every resource is a plugin of its own, with a socket in the kubelet's directory. Who
has which device only the kubelet knows, in its checkpoint: this process may be killed at any moment. When the kubelet
starts again it removes all sockets, and has to be told of each resource once more.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace.devices import cdi, plugin_api
from pinnace.devices.granted import accessible
from pinnace.devices.grpc import NOT_FOUND, OK, UNIMPLEMENTED, UNKNOWN, GrpcConnection, GrpcError
from pinnace.devices.plugin_api import HEALTHY, UNHEALTHY, ContainerAllocation, ListedDevice, PreferenceRequest
from pinnace.spec.devices import Device, DeviceOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinnace.devices.grpc import Call

REGISTER_INTERVAL = 0.02  # seconds between attempts while the kubelet starts
REGISTER_LIMIT = 10.0  # seconds for the kubelet's answer
HEALTH_INTERVAL = 5.0  # seconds between looks whether the devices are there
BACKLOG = 8


def log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@dataclass(kw_only=True)
class Registration:
    """Our call to the kubelet, until it is answered."""

    connection: GrpcConnection
    deadline: float


@dataclass(kw_only=True)
class ResourcePlugin:
    """A plugin. ``watches`` are the streams on which the kubelet hears of its devices; none if it does not know us."""

    name: str
    devices: tuple[Device, ...]
    listener: socket.socket | None = None
    inode: int = 0
    connections: list[GrpcConnection] = field(default_factory=list)
    watches: list[tuple[GrpcConnection, int]] = field(default_factory=list)
    registration: Registration | None = None
    unhealthy: frozenset[str] = frozenset()

    @property
    def endpoint(self) -> str:
        return f"pinnace-{self.name.replace('/', '-')}.sock"

    def listed(self) -> list[ListedDevice]:
        return [
            ListedDevice(
                id=device.id,
                health=UNHEALTHY if device.id in self.unhealthy else HEALTHY,
                numa_node=device.numa_node,
            )
            for device in self.devices
        ]

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        """What a container gets with these devices. Raises KeyError if there is no such device."""
        places = {device.id: place for place, device in enumerate(self.devices)}
        chosen = [self.devices[place] for place in sorted(places[name] for name in ids)]
        variables: dict[str, list[str]] = {}
        for device in chosen:
            for variable in device.variables:
                variables.setdefault(variable, []).append(device.value)
        return ContainerAllocation(
            variables={name: ",".join(values) for name, values in variables.items()},
            cdi_devices=tuple(cdi.name(self.name, device.id) for device in chosen if device.files),
        )

    def preferred(self, request: PreferenceRequest) -> list[str]:
        """The first ones, those of one NUMA node together."""
        places = {device.id: (device.numa_node or 0, index) for index, device in enumerate(self.devices)}
        others = sorted(set(request.available) - set(request.included), key=lambda name: places.get(name, (0, 0)))
        return [*request.included, *others][: request.size]


class DevicePlugins:
    """All plugins of a node, in one loop."""

    def __init__(
        self, offer: DeviceOffer, directory: Path = plugin_api.DIRECTORY, may_use: Callable[[str], bool] = accessible
    ) -> None:
        self.directory = directory
        self.may_use = may_use
        self.resources = [ResourcePlugin(name=name, devices=offer.of(name)) for name in offer.resources]
        self.next_health = 0.0

    def run(self) -> None:
        while True:
            self.step(HEALTH_INTERVAL)

    def step(self, longest: float) -> None:
        """Do what there is to do, or wait for it."""
        now = time.monotonic()
        if now >= self.next_health:
            self.next_health = now + HEALTH_INTERVAL
            self._check_health()
        for resource in self.resources:
            self._register(resource, now)
        known = all(resource.watches for resource in self.resources)
        pause = min(longest, max(0.0, self.next_health - now)) if known else REGISTER_INTERVAL
        poll = select.poll()
        readable: dict[int, tuple[ResourcePlugin, socket.socket | GrpcConnection | Registration]] = {}
        for resource in self.resources:
            for item in (resource.listener, *resource.connections):
                if item:
                    readable[item.fileno()] = (resource, item)
            if resource.registration:
                readable[resource.registration.connection.fileno()] = (resource, resource.registration)
        for descriptor in readable:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(pause * 1000):
            self._read(*readable[descriptor])

    def _read(self, resource: ResourcePlugin, item: socket.socket | GrpcConnection | Registration) -> None:
        if isinstance(item, Registration):
            self._hear_registration(resource, item)
        elif isinstance(item, socket.socket):
            with contextlib.suppress(OSError):
                resource.connections.append(GrpcConnection(item.accept()[0], client=False))
        else:
            try:
                for call in item.receive():
                    self._serve(resource, item, call)
            except OSError:
                self._drop(resource, item)
            resource.watches = [watch for watch in resource.watches if watch[1] in watch[0].streams]

    # --- registration ---------------------------------------------------------------------------------------------

    def _register(self, resource: ResourcePlugin, now: float) -> None:
        """Tell the kubelet of a resource that it does not watch."""
        if resource.registration and now > resource.registration.deadline:
            self._end_registration(resource)
        if resource.watches or resource.registration:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(self.directory / plugin_api.KUBELET_SOCKET))
            self._listen(resource)  # only now: a kubelet that starts removes all sockets before it listens
            connection = GrpcConnection(sock, client=True)
            connection.call(plugin_api.REGISTER, plugin_api.register_request(resource.name, resource.endpoint))
            resource.registration = Registration(connection=connection, deadline=now + REGISTER_LIMIT)
        except OSError:  # there is no kubelet, or one that has just ended
            sock.close()

    def _listen(self, resource: ResourcePlugin) -> None:
        path = self.directory / resource.endpoint
        with contextlib.suppress(OSError):
            if resource.listener and path.stat().st_ino == resource.inode:
                return
        if resource.listener:
            resource.listener.close()
        path.unlink(missing_ok=True)
        resource.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        resource.listener.bind(str(path))
        resource.listener.listen(BACKLOG)
        resource.inode = path.stat().st_ino

    def _hear_registration(self, resource: ResourcePlugin, registration: Registration) -> None:
        try:
            answers = registration.connection.receive()
        except OSError:
            self._end_registration(resource)
            return
        for answer in answers:
            done = answer.status == OK
            log(f"{resource.name}: {'registered' if done else f'not registered: {answer.status_message}'}")
            self._end_registration(resource)

    @staticmethod
    def _end_registration(resource: ResourcePlugin) -> None:
        if resource.registration:
            resource.registration.connection.close()
            resource.registration = None

    # --- the kubelet's calls --------------------------------------------------------------------------------------

    def _serve(self, resource: ResourcePlugin, connection: GrpcConnection, call: Call) -> None:
        try:
            self._answer(resource, connection, call)
        except (KeyError, ValueError) as error:
            connection.refuse(call.stream, NOT_FOUND if isinstance(error, KeyError) else UNKNOWN, f"{error}")

    @staticmethod
    def _answer(resource: ResourcePlugin, connection: GrpcConnection, call: Call) -> None:
        match call.path.removeprefix(plugin_api.PLUGIN):
            case "GetDevicePluginOptions":
                connection.answer(call.stream, plugin_api.options())
            case "ListAndWatch":
                connection.begin(call.stream)
                connection.send(call.stream, plugin_api.device_list(resource.listed()))
                resource.watches.append((connection, call.stream))
            case "Allocate":
                containers = [resource.allocate(ids) for ids in plugin_api.parse_allocate(call.message)]
                log(f"{resource.name}: {[container.cdi_devices for container in containers]}")
                connection.answer(call.stream, plugin_api.allocate_response(containers))
            case "GetPreferredAllocation":
                wanted = [resource.preferred(request) for request in plugin_api.parse_preference(call.message)]
                connection.answer(call.stream, plugin_api.preference_response(wanted))
            case "PreStartContainer":
                connection.answer(call.stream, b"")
            case other:
                connection.refuse(call.stream, UNIMPLEMENTED, f"there is no method {other}")

    def _check_health(self) -> None:
        """A device whose file is gone, or may no longer be opened, is not handed out."""
        for resource in self.resources:
            found = frozenset(d.id for d in resource.devices if not all(map(self.may_use, d.files)))
            if found == resource.unhealthy:
                continue
            log(f"{resource.name}: unhealthy: {sorted(found) or 'none'}")
            resource.unhealthy = found
            for connection, stream in list(resource.watches):
                try:
                    connection.send(stream, plugin_api.device_list(resource.listed()))
                except GrpcError:
                    self._drop(resource, connection)

    @staticmethod
    def _drop(resource: ResourcePlugin, connection: GrpcConnection) -> None:
        """The kubelet has closed a connection: usually because it has ended."""
        connection.close()
        resource.connections = [other for other in resource.connections if other is not connection]
        resource.watches = [watch for watch in resource.watches if watch[0] is not connection]


def main(argv: list[str]) -> None:
    offer = DeviceOffer.from_json(json.loads(Path(argv[0]).read_text()))
    os.umask(0o077)
    DevicePlugins(offer).run()


if __name__ == "__main__":
    main(sys.argv[1:])
