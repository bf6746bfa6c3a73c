"""The seed of etcd: the state that the API server writes at its first start, made once and kept.

On an empty etcd the API server spends seconds creating the same hundred roles, flow schemas and namespaces, and nothing
else works before that. A seed is etcd's data directory after that, without everything that belongs to one cluster:
addresses, leases, certificates. It has no secrets, and it is the same for every cluster of a version.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import subprocess
import tempfile
import time
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from pinnace import ownership
from pinnace.controlplane import pki, processes
from pinnace.controlplane.etcd_data import copy_seed
from pinnace.controlplane.objects import common_objects
from pinnace.errors import ComponentError
from pinnace.kube.client import Api
from pinnace.network.addresses import Ranges
from pinnace.spec import Allocation, ClusterSpec, NodeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SEED_TIMEOUT = 60.0  # seconds for the first start of the API server; it takes about five
CLUSTER_SPECIFIC_PREFIXES = (
    "/registry/configmaps/kube-system/extension-apiserver-authentication",
    "/registry/endpointslices/default/",
    "/registry/events/",
    "/registry/ipaddresses/",
    "/registry/leases/",
    "/registry/masterleases/",
    "/registry/ranges/",
    "/registry/servicecidrs/",
    "/registry/services/",
)


def make_seed(binaries: Mapping[str, str], target: Path) -> None:
    """Run etcd and the API server once, and keep the data directory. ``target`` is created atomically."""
    ownership.make_directories(target.parent, 0o755)
    with tempfile.TemporaryDirectory(prefix=".seed-", dir=target.parent) as scratch:
        made = _first_start(Path(scratch), dict(binaries))
        with contextlib.suppress(FileExistsError, OSError):  # another process was faster: its seed is the same
            made.rename(target)


def _first_start(scratch: Path, binaries: dict[str, str]) -> Path:
    secrets, data = scratch / "secrets", scratch / "etcd"
    for directory in (secrets, data):
        directory.mkdir(mode=0o700)
    ranges = Ranges(nodes=IPv4Network("127.0.0.0/16"), pods=IPv4Network("10.244.0.0/16"),
                    services=IPv4Network("10.96.0.0/16"))  # fmt: skip
    pki.create_control_plane(secrets, ranges, "cluster.local")
    spec = ClusterSpec(name="seed", directory=scratch, ranges=ranges, binaries=binaries)
    node = NodeSpec(cluster=spec, index=0, name="seed", scratch=scratch, allocation=Allocation())
    # A path of a UNIX socket has at most 107 characters, and a home may be deep.
    with tempfile.TemporaryDirectory(prefix="pinnace-") as short, contextlib.ExitStack() as stack:
        sockets = f"unix://{short}/etcd.sock"
        etcd = stack.enter_context(_running(processes.etcd_argv(node, str(data), sockets), scratch / "etcd.log"))
        port = _free_port()
        argv = processes.apiserver_argv(node, etcd=sockets, port=port, bind="127.0.0.1")
        with _running(argv, scratch / "apiserver.log") as apiserver:
            api = Api(_with_port(secrets / "admin.kubeconfig", port), timeout=2.0)
            _wait(lambda: api.healthy("/readyz"), apiserver, scratch / "apiserver.log")
            for path, body in common_objects():
                api.create(path, body)
        for prefix in CLUSTER_SPECIFIC_PREFIXES:
            _delete(f"{short}/etcd.sock", prefix)
        etcd.terminate()
        etcd.wait(SEED_TIMEOUT)
    made = scratch / "seed"
    made.mkdir(mode=0o755)
    copy_seed(data, made)
    for entry in (made, *made.rglob("*")):  # a site's seed is readable by all users, and has no secrets
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    return made


@contextlib.contextmanager
def _running(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(check: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SEED_TIMEOUT
    while not check():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise ComponentError(f"kube-apiserver did not start for the first time:\n{tail}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def _with_port(kubeconfig: Path, port: int) -> Path:
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    pki.write_secret(kubeconfig, json.dumps(document).encode())
    return kubeconfig


def _delete(path: str, prefix: str) -> None:
    """Delete all keys with a prefix, through etcd's JSON gateway on its socket."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    body = {"key": base64.b64encode(prefix.encode()).decode(), "range_end": base64.b64encode(end.encode()).decode()}
    connection = http.client.HTTPConnection("localhost", timeout=10)
    with contextlib.closing(connection), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        connection.sock = sock
        connection.request("POST", "/v3/kv/deleterange", json.dumps(body))
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise ComponentError(f"etcd refused to delete {prefix}: {response.read().decode(errors='replace')}")
