"""Who talks to whom: the hosts, the pods and Services on them, and their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.network.measurements import PYTHON_PORT, RR_PORT, SERVER_CPU, Client, NetworkPath, Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed.plan import Plan

__all__ = [
    "CLIENT_HOST", "DIRECTORY", "HOSTS", "IMAGES", "PYTHON", "RR", "SERVERS", "USER", "Addresses", "addresses",
    "objects",
]  # fmt: skip

Addresses = dict[tuple[NetworkPath, Target], str]

USER = "alice"
HOSTS = SERVER_HOST, CLIENT_HOST, OUTSIDE_HOST = "n1", "n2", "n3"  # the last one is not in the cluster
BARE_HOSTS = {
    Target.HOST: OUTSIDE_HOST,
    Target.POD: SERVER_HOST,
    Target.SERVICE: SERVER_HOST,
    Target.NEIGHBOUR: CLIENT_HOST,
}
POD_PATHS = (NetworkPath.NATIVE, NetworkPath.GENERAL)
OPT_OUT = {"pinnace.dev/native-sockets": "false"}
IMAGES = {Client.IPERF3: "nettools", Client.RR: "nettools", Client.PYTHON: "python"}
DIRECTORY = f"/home/{USER}/bench"  # in the home that all hosts share, and at the same path in pods
RR = f"{DIRECTORY}/rr"
PYTHON = f"{DIRECTORY}/ordinary.py"
IPERF3_PORT = 5201
ON_SERVER = [RR, "on", str(SERVER_CPU)]
SERVERS = {
    "iperf3": (Client.IPERF3, ["iperf3", "--server"]),
    "rr": (Client.RR, [*ON_SERVER, "serve-tcp", str(RR_PORT)]),
    "rr-udp": (Client.RR, [*ON_SERVER, "serve-udp", str(RR_PORT)]),
    "python": (Client.PYTHON, [*ON_SERVER, "cpu", "python3", PYTHON, "serve", str(PYTHON_PORT)]),
}
CLIENTS = {client.value: (client, ["sleep", "infinity"]) for client in Client}


def objects() -> dict[str, Any]:
    """For each path a client, a server on the other node with a Service, and a server on the client's node."""
    items = []
    for path in POD_PATHS:
        items += [
            pod("client", path, CLIENT_HOST, CLIENTS),
            pod("server", path, SERVER_HOST, SERVERS),
            pod("neighbour", path, CLIENT_HOST, SERVERS),
            service("server", path),
        ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def pod(
    role: str, path: NetworkPath, node: str, commands: Mapping[str, tuple[Client, Sequence[str]]]
) -> dict[str, Any]:
    """A pod with a container for each command, by its name, with the image for a client and its server."""
    name = f"{role}-{path}"
    annotations = OPT_OUT if path is NetworkPath.GENERAL else {}
    mounts = [{"name": "bench", "mountPath": DIRECTORY}]
    containers = [
        {
            "name": container,
            "image": f"localhost/pinnace-test/{IMAGES[client]}:1",
            "command": command,
            "volumeMounts": mounts,
        }
        for container, (client, command) in commands.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": containers,
            "volumes": [{"name": "bench", "hostPath": {"path": DIRECTORY, "type": "Directory"}}],
        },
    }


def service(role: str, path: NetworkPath) -> dict[str, Any]:
    name = f"{role}-{path}"
    ports = [
        {"name": "iperf3", "port": IPERF3_PORT, "protocol": "TCP"},
        {"name": "rr", "port": RR_PORT, "protocol": "TCP"},
        {"name": "python", "port": PYTHON_PORT, "protocol": "TCP"},
        {"name": "python-udp", "port": PYTHON_PORT, "protocol": "UDP"},
        {"name": "rr-udp", "port": RR_PORT, "protocol": "UDP"},
    ]
    spec = {"selector": {"app": name}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def addresses(plan: Plan, found: Sequence[dict[str, Any]]) -> Addresses:
    """Those of all targets for each path, from the plan of the bed and the pods and Services that the API has."""
    result = {(NetworkPath.BARE, target): str(plan.host(name).address) for target, name in BARE_HOSTS.items()}
    pods = {item["metadata"]["name"]: item["status"]["podIP"] for item in found if item["kind"] == "Pod"}
    services = {item["metadata"]["name"]: item["spec"]["clusterIP"] for item in found if item["kind"] == "Service"}
    for path in POD_PATHS:
        result[path, Target.HOST] = result[NetworkPath.BARE, Target.HOST]
        result[path, Target.POD] = pods[f"server-{path}"]
        result[path, Target.SERVICE] = services[f"server-{path}"]
        result[path, Target.NEIGHBOUR] = pods[f"neighbour-{path}"]
    return result
