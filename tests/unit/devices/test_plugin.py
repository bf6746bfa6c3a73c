"""The device plugin, with a kubelet that speaks gRPC through the same library but has state of its own."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinnace.devices import cdi, plugin_api, protobuf
from pinnace.devices.grpc import NOT_FOUND, OK, UNIMPLEMENTED, Call, GrpcConnection, GrpcError
from pinnace.devices.plugin import DevicePlugins, ResourcePlugin
from pinnace.devices.plugin_api import PLUGIN, PreferenceRequest
from pinnace.spec.devices import Device, DeviceOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GPU = "nvidia.com/gpu"
VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def gpu(number: int, **more: int) -> Device:
    name = f"GPU-{number}"
    return Device(resource=GPU, id=name, files=(f"/dev/nvidia{number}",), variables=VARIABLES, value=name, **more)


OFFER = DeviceOffer(
    devices=(gpu(0), gpu(1, numa_node=1), Device(resource="example.com/token", id="t0")),
    resources=(GPU, "example.com/token"),
    mounts={GPU: {"/usr/local/nvidia/lib64/libcuda.so.1": "/lib/libcuda.so.535"}},
)


class Kubelet:
    """Takes registrations, and calls plugins."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for path in directory.glob("*.sock"):  # as a kubelet does when it starts
            path.unlink()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(directory / plugin_api.KUBELET_SOCKET))
        self.listener.listen()
        self.listener.settimeout(10)
        self.connections: list[GrpcConnection] = []

    def registration(self) -> dict[str, str]:
        """The next one: the resource and its socket. It is answered after the plugin was asked for its options."""
        connection = GrpcConnection(self.listener.accept()[0], client=False)
        call = next_call(connection)
        assert call.path == plugin_api.REGISTER
        fields = {number: value.decode() for number, value in protobuf.fields(call.message) if number < 4}  # type: ignore[union-attr]
        plugin = self.connect(fields[2])
        assert ask(plugin, "GetDevicePluginOptions").message == plugin_api.options()
        connection.answer(call.stream, b"")
        connection.close()
        return {"resource": fields[3], "socket": fields[2]}

    def connect(self, name: str) -> GrpcConnection:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.directory / name))
        self.connections.append(GrpcConnection(sock, client=True))
        return self.connections[-1]

    def watch(self, name: str) -> tuple[GrpcConnection, int]:
        connection = self.connect(name)
        return connection, connection.call(f"{PLUGIN}ListAndWatch", b"")

    def end(self) -> None:
        for connection in self.connections:
            connection.close()
        self.listener.close()


def next_call(connection: GrpcConnection) -> Call:
    while True:
        if calls := connection.receive():
            return calls[0]


def ask(connection: GrpcConnection, method: str, message: bytes = b"") -> Call:
    connection.call(f"{PLUGIN}{method}", message)
    return next_call(connection)


def listed(connection: GrpcConnection, stream: int) -> dict[str, str]:
    """The next list of devices of a stream: health by id."""
    while len(connection.streams[stream].received) < 5:
        connection.receive()
    data = connection.streams[stream].received
    length = int.from_bytes(data[1:5])
    while len(connection.streams[stream].received) < 5 + length:
        connection.receive()
    data = connection.streams[stream].received
    connection.streams[stream].received = data[5 + length :]
    devices = protobuf.messages(data[5 : 5 + length], 1)
    return {protobuf.texts(device, 1)[0]: protobuf.texts(device, 2)[0] for device in devices}


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(tmp_path)
    yield kubelet
    kubelet.end()


@pytest.fixture
def gone() -> set[str]:
    """Device files that have vanished."""
    return set()


@pytest.fixture
def plugins(kubelet: Kubelet, gone: set[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[DevicePlugins]:
    monkeypatch.setattr("pinnace.devices.plugin.HEALTH_INTERVAL", 0.05)
    running = DevicePlugins(OFFER, kubelet.directory, lambda path: path not in gone)
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            running.step(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    yield running
    stop.set()
    thread.join()
    for resource in running.resources:
        for item in (resource.listener, *resource.connections):
            if item:
                item.close()
        if resource.registration:
            resource.registration.connection.close()


def wait(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("plugins")
def test_every_resource_registers_and_allocates(kubelet: Kubelet) -> None:
    found = [kubelet.registration() for _ in OFFER.resources]
    assert {one["resource"] for one in found} == set(OFFER.resources)
    where = {one["resource"]: one["socket"] for one in found}
    connection, stream = kubelet.watch(where[GPU])
    assert listed(connection, stream) == {"GPU-0": "Healthy", "GPU-1": "Healthy"}
    request = protobuf.bytes_field(1, protobuf.text_field(1, "GPU-1") + protobuf.text_field(1, "GPU-0"))
    answer = ask(connection, "Allocate", request)
    (container,) = protobuf.messages(answer.message, 1)
    entries = [protobuf.texts(entry, 1) + protobuf.texts(entry, 2) for entry in protobuf.messages(container, 1)]
    assert entries == [[name, "GPU-0,GPU-1"] for name in VARIABLES]
    devices = [protobuf.texts(device, 1)[0] for device in protobuf.messages(container, 5)]
    assert devices == ["pinnace.dev/nvidia.com-gpu=GPU-0", "pinnace.dev/nvidia.com-gpu=GPU-1"]
    other = kubelet.connect(where["example.com/token"])
    answer = ask(other, "Allocate", protobuf.bytes_field(1, protobuf.text_field(1, "t0")))
    assert (answer.status, protobuf.messages(answer.message, 1)) == (OK, [b""])


@pytest.mark.usefixtures("plugins")
def test_bad_calls_are_refused_and_the_connection_lives(kubelet: Kubelet) -> None:
    where = {one["resource"]: one["socket"] for one in (kubelet.registration() for _ in OFFER.resources)}
    connection = kubelet.connect(where[GPU])
    unknown = protobuf.bytes_field(1, protobuf.text_field(1, "GPU-9"))
    assert ask(connection, "Allocate", unknown).status == NOT_FOUND
    assert ask(connection, "Allocate", b"\xff").status not in {OK, NOT_FOUND}
    assert ask(connection, "Reset").status == UNIMPLEMENTED
    assert ask(connection, "PreStartContainer").status == OK
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(str(kubelet.directory / where[GPU]))
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    stranger.settimeout(5)
    while stranger.recv(4096):
        pass
    stranger.close()
    assert ask(connection, "GetDevicePluginOptions").status == OK


def test_a_kubelet_that_starts_again_is_told_again(kubelet: Kubelet, plugins: DevicePlugins) -> None:
    for _ in range(3):
        for one in [kubelet.registration() for _ in OFFER.resources]:
            connection, stream = kubelet.watch(one["socket"])
            assert listed(connection, stream)
        wait(lambda: all(resource.watches for resource in plugins.resources))
        kubelet.end()
        wait(lambda: not any(resource.watches for resource in plugins.resources))
        kubelet = Kubelet(kubelet.directory)
    kubelet.end()


@pytest.mark.usefixtures("plugins")
def test_a_device_that_vanishes_is_unhealthy_until_it_is_back(kubelet: Kubelet, gone: set[str]) -> None:
    where = {one["resource"]: one["socket"] for one in (kubelet.registration() for _ in OFFER.resources)}
    connection, stream = kubelet.watch(where[GPU])
    listed(connection, stream)
    gone.add("/dev/nvidia1")
    assert listed(connection, stream) == {"GPU-0": "Healthy", "GPU-1": "Unhealthy"}
    gone.clear()
    assert listed(connection, stream) == {"GPU-0": "Healthy", "GPU-1": "Healthy"}


def test_messages_longer_than_the_peers_window() -> None:
    """A list of 64 KiB and more waits for the peer to read."""
    one, other = socket.socketpair(socket.AF_UNIX)
    server, client = GrpcConnection(one, client=False), GrpcConnection(other, client=True)
    big = b"x" * 300_000
    client.call("/a", b"")
    (call,) = server.receive() or server.receive()
    server.answer(call.stream, big)
    answer: list[Call] = []
    while not answer:
        answer = client.receive()
        while select.select([server], [], [], 0.01)[0]:
            server.receive()
    assert answer[0].message == big
    server.close()
    with pytest.raises(GrpcError):
        client.receive()
    client.close()


def test_devices_of_one_numa_node_go_together() -> None:
    devices = tuple(gpu(number, numa_node=number % 2) for number in range(4))
    resource = ResourcePlugin(name=GPU, devices=devices)

    def preferred(size: int, *included: str) -> list[str]:
        available = [device.id for device in devices]
        return resource.preferred(PreferenceRequest(available=available, included=list(included), size=size))

    assert preferred(2) == ["GPU-0", "GPU-2"]
    assert preferred(2, "GPU-3") == ["GPU-3", "GPU-0"]


def test_what_the_kubelet_knows(tmp_path: Path) -> None:
    assert plugin_api.registered(tmp_path) == set()
    for text in ("", "{}", "[]", '{"Data": {"RegisteredDevices": null}}'):
        (tmp_path / plugin_api.CHECKPOINT).write_text(text)
        assert plugin_api.registered(tmp_path) == set()
    (tmp_path / plugin_api.CHECKPOINT).write_text(json.dumps({"Data": {"RegisteredDevices": {GPU: []}}, "Checksum": 1}))
    assert plugin_api.registered(tmp_path) == {GPU}


def test_the_specification_for_containerd(tmp_path: Path) -> None:
    cdi.write(OFFER, tmp_path)
    (file,) = tmp_path.iterdir()
    spec = json.loads(file.read_text())
    assert spec["kind"] == "pinnace.dev/nvidia.com-gpu"
    assert [device["name"] for device in spec["devices"]] == ["GPU-0", "GPU-1"]
    assert spec["devices"][0]["containerEdits"] == {"deviceNodes": [{"path": "/dev/nvidia0"}]}
    (mount,) = spec["containerEdits"]["mounts"]
    assert mount["containerPath"] == "/usr/local/nvidia/lib64/libcuda.so.1"
    assert "ro" in mount["options"]


def test_an_offer_passes_through_a_file() -> None:
    assert DeviceOffer.from_json(json.loads(json.dumps(OFFER.to_json()))) == OFFER


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 40])
def test_numbers_of_protobuf(number: int) -> None:
    data = protobuf.number_field(3, number) + protobuf.text_field(1, "after")
    assert protobuf.number(data, 3) == number
    assert protobuf.texts(data, 1) == ["after"]


@pytest.mark.parametrize("data", [b"\x80", b"\x0a\x05ab", b"\x0b", b"\xff" * 12, b"\x09\x00"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="message"):
        list(protobuf.fields(data))
