"""Containers in the host's network namespace: how the bundles of the RuntimeClass ``host-network`` differ.

``node.shim_server`` starts their shim in that namespace, so a container that is given none of its own is in it. There
the cluster's DNS, its Services and its addresses do not exist. So the pod's address is the host's; containers get the
host's ``resolv.conf``; their own name in ``/etc/hosts`` leads to the host's address; and the API has the address and
port that it has outside the cluster, under a name that its certificate has.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.controlplane.objects import HOST_NETWORK
from pinnace.node.services import shim_client
from pinnace.spec import HEAD, NodeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinnace.spec import NodeSpec

SOCKET = f"{HOST_NETWORK}.sock"  # in the node's /run/pinnace
RESOLV_CONF = f"{HOST_NETWORK}.resolv.conf"  # there too
HOST_ADDRESS = "PINNACE_HOST_ADDRESS"  # in containers
# What containerd sets in the network namespace of every pod; runc refuses it in the host's.
POD_SYSCTLS = frozenset({"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"})
CNI_VERSION = "1.0.0"
KUBELET_HOSTS = "etc-hosts"  # the file that the kubelet makes for a pod


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host, as its own network sees it.

    ``api`` is where the API is found from there. ``api_service`` and ``name_servers`` are what pods are told otherwise.
    """

    address: str
    resolv_conf: str
    api: tuple[str, int]
    api_service: str
    api_names: tuple[str, ...]
    name_servers: frozenset[str]


def host_record(node: NodeSpec, index: int) -> NodeRecord:
    """What an agent has recorded of its host before it started its node."""
    record = NodeRecord.read(node.cluster.node_file(index))
    if not record or not record.address:
        raise OSError(f"node {index} has ended")
    return record


def describe(node: NodeSpec, run_directory: Path) -> Host:
    """The host of a node."""
    cluster = node.cluster
    head = host_record(node, HEAD)
    if head.api is None:
        raise OSError("the head has recorded no port of the API")
    service = "kubernetes.default.svc"
    return Host(
        address=host_record(node, node.index).address,
        resolv_conf=str(run_directory / RESOLV_CONF),
        api=(head.address, head.api),
        api_service=str(cluster.ranges.api),
        api_names=(service, f"{service}.{cluster.domain}", "kubernetes.default", "kubernetes"),
        name_servers=frozenset({str(cluster.ranges.dns), str(cluster.ranges.resolver)}),
    )


def shim_script(shim: str, socket: str, python: str) -> str:
    """What containerd executes in place of the shim. Only what stays behind has to be in the host's network."""
    client = [python, "-I", "-S", str(Path(shim_client.__file__).resolve()), socket]
    return f"""#!/bin/sh
for action; do :; done
[ "$action" = start ] || exec {shlex.quote(shim)} "$@"
exec {shlex.join(client)} "$@"
"""


def cni_conflist() -> dict[str, Any]:
    """What containerd asks for a pod's address: the plugin alone."""
    return {"cniVersion": CNI_VERSION, "name": HOST_NETWORK, "plugins": [{"type": HOST_NETWORK}]}


def cni_plugin(address: str) -> str:
    """A CNI plugin that makes nothing, and says that a pod has the host's address. Whatever it is asked succeeds."""
    result = {"cniVersion": CNI_VERSION, "ips": [{"address": f"{address}/32"}]}
    return f"""#!/bin/sh
[ "$CNI_COMMAND" != ADD ] || echo {shlex.quote(json.dumps(result))}
"""


def on_host_network(config: dict[str, Any], host: Host, bundle: Path) -> dict[str, Any]:
    """A bundle's configuration without a network namespace. Files that it needs are written to the bundle."""
    linux = config["linux"]
    namespaces = [namespace for namespace in linux.get("namespaces", ()) if namespace["type"] != "network"]
    sysctl = {name: value for name, value in linux.get("sysctl", {}).items() if name not in POD_SYSCTLS}
    name = variables(config["process"]).get("HOSTNAME", "")
    return config | {
        "linux": linux | {"namespaces": namespaces, "sysctl": sysctl},
        "mounts": [_mount(mount, host, bundle, name) for mount in config.get("mounts", ())],
        "process": with_host_environment(config["process"], host),
    }


def _mount(mount: dict[str, Any], host: Host, bundle: Path, name: str) -> dict[str, Any]:
    source = Path(mount.get("source", ""))
    if mount.get("type") == "sysfs":  # a new one would show a network namespace that is not ours
        return mount | {"type": "bind", "source": "/sys", "options": ["rbind", *mount.get("options", ())]}
    if mount["destination"] == "/etc/resolv.conf" and only_names(read_lenient(source), host.name_servers):
        return mount | {"source": host.resolv_conf}
    if mount["destination"] == "/etc/hosts" and source.name == KUBELET_HOSTS:
        made = bundle / "hosts"
        text = with_lines_of(read_lenient(source), read_lenient(Path("/etc/hosts")))
        made.write_text(hosts_file(text, known_names(host, name)))
        made.chmod(0o644)
        return mount | {"source": str(made)}
    return mount


def read_lenient(path: Path) -> str:
    """A file of the host's; nothing if it is not there. Comments may have any encoding."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def only_names(resolv_conf: str, name_servers: frozenset[str]) -> bool:
    """Whether a resolv.conf names none but these; a pod can name others itself (``dnsPolicy: None``)."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return {line[1] for line in lines if len(line) > 1 and line[0] == "nameserver"} <= name_servers


def known_names(host: Host, name: str) -> dict[str, str]:
    """The names that a container must find, with their addresses."""
    return dict.fromkeys(host.api_names, host.api[0]) | ({name: host.address} if name else {})


def with_lines_of(text: str, other: str) -> str:
    """A text with those lines of another that it lacks: the kubelet gives the host's to pods with ``hostNetwork``."""
    own = text.splitlines()
    return "\n".join([*own, *(line for line in other.splitlines() if line not in own)]) + "\n"


def hosts_file(text: str, names: Mapping[str, str]) -> str:
    """A hosts file in which these names have these addresses, and no others."""
    lines, found = [], set()
    for line in text.splitlines():
        address, *aliases = line.partition("#")[0].split() or [""]
        right = [alias for alias in aliases if names.get(alias, address) == address]
        found |= set(right)
        if right == aliases:
            lines.append(line)
        elif right:
            lines.append(" ".join([address, *right]))
    lines += [f"{address} {name}" for name, address in names.items() if name not in found]
    return "\n".join(lines) + "\n"


def variables(process: Mapping[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in process.get("env", ()))


def with_host_environment(process: dict[str, Any], host: Host) -> dict[str, Any]:
    """A process that is told its host's address, and where the API is unless it was told otherwise."""
    told = {HOST_ADDRESS: host.address} | variables(process)
    if told.get("KUBERNETES_SERVICE_HOST") == host.api_service:
        port = str(host.api[1])
        told |= {
            "KUBERNETES_SERVICE_HOST": host.api_names[0],
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }
    return process | {"env": [f"{name}={value}" for name, value in told.items()]}
