"""How this host reaches a cluster's API: directly, or through a tunnel in a step of the cluster's job.

The cluster's kubeconfig says which. Whether the head's host can be reached is tried, not guessed: the head listens
before it says where, so a connection is there at once or not at all.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pinnace.cluster import configuration, kubeconfig, tunnel_start
from pinnace.cluster.configuration import DIRECT, THROUGH_SLURM
from pinnace.cluster.credential import (
    API_VERSION,
    CREDENTIAL,
    EXPIRES,
    SCRIPT,
    credential_argv,
    exec_credential,
    read_admin,
)
from pinnace.cluster.head_step import running_head, step_argv
from pinnace.cluster.over_ssh import ssh_kubeconfig
from pinnace.cluster.tunnel_start import LocalAddress
from pinnace.controlplane.pki import write_secret
from pinnace.errors import AddressTakenError, ClusterError
from pinnace.node.stopping import ask_to_stop
from pinnace.slurm.variables import submission_environment
from pinnace.spec import agent_argv

if TYPE_CHECKING:
    from pathlib import Path

    from pinnace.cluster.directory import Directory

PROBE_LIMIT = 1.5  # seconds: time for a second try of the kernel's
STOP_LIMIT = 30.0  # seconds for a step that asks the head to end
MOVES = 5  # addresses that are tried


def can_connect(server: str) -> bool:
    """Whether this host reaches an address such as https://10.0.0.1:6443."""
    address = urlsplit(server)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=PROBE_LIMIT).close()
    except OSError:
        return False
    return True


def local_address(path: Path) -> LocalAddress | None:
    """Where the tunnel is that a kubeconfig leads through; None if it leads to the API directly."""
    document = read(path)
    if document is None or "exec" not in document["users"][0]["user"]:
        return None
    address = urlsplit(document["clusters"][0]["cluster"]["server"])
    return LocalAddress(host=address.hostname or "", port=address.port or 0)


def read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text())) if path.exists() else None


def plugin(directory: Path, local: LocalAddress) -> dict[str, Any]:
    """The user of a kubeconfig who gets certificate and tunnel from our credential plugin. Writes what it prints."""
    credential = exec_credential(read_admin(directory), EXPIRES)
    write_secret(directory / "secrets" / CREDENTIAL, json.dumps(credential).encode())
    args = ["-c", SCRIPT, "pinnace-credential", str(directory), str(local), *credential_argv(directory, local)]
    return {"exec": {"apiVersion": API_VERSION, "command": "/bin/sh", "args": args, "interactiveMode": "Never"}}


def write_kubeconfig(directory: Directory) -> Path:
    """Write the kubeconfig of a cluster whose head has said where it is, and start the tunnel if there must be one.

    A tunnel that runs is used. One that does not is not started again if this host reaches the head by now.
    """
    path, server = directory.path / "kubeconfig", directory.api_address
    if server is None:
        raise ClusterError(f"the cluster {directory.name} is not ready yet")
    access, local = configuration.access(os.environ), local_address(path)
    if access == DIRECT or not _has_job(directory):
        return directory.write_kubeconfig(server)
    runs = local is not None and local.owner == os.getuid()
    if access != THROUGH_SLURM and not runs and can_connect(server):
        return directory.write_kubeconfig(server)
    _start_tunnel(directory, local or LocalAddress.random())
    return path


def refresh(directory: Directory) -> None:
    """See to it that a cluster's kubeconfig can be used from this host. The user's own then leads there too."""
    path = directory.path / "kubeconfig"
    if not path.exists() or directory.api_address is None:  # it has not started, or has ended
        return
    before = path.read_text()
    write_kubeconfig(directory)
    if path.read_text() != before and kubeconfig.has_context(directory.name):
        kubeconfig.merge(path, current=False)


def move(directory: Directory, taken: LocalAddress) -> LocalAddress:
    """Give a cluster's tunnel another address, because somebody else has ``taken`` its own.

    kubectl calls a plugin that fails several times, with what it has read before: it moves once.
    """
    known = local_address(directory.path / "kubeconfig")
    local = _start_tunnel(directory, known if known and known != taken else LocalAddress.random())
    if kubeconfig.has_context(directory.name):
        kubeconfig.merge(directory.path / "kubeconfig", current=False)
    return local


def over_ssh(path: Path, login: str) -> dict[str, Any]:
    """A cluster's kubeconfig for a machine that reaches this host by ``ssh login``."""
    return ssh_kubeconfig(json.loads(path.read_text()), login, credential_argv(path.parent, local_address(path)))


def _has_job(directory: Directory) -> bool:
    return directory.head is not None and directory.head.job is not None


def _start_tunnel(directory: Directory, local: LocalAddress) -> LocalAddress:
    """Start the tunnel, at this address or, if somebody else has it, at another; the kubeconfig then leads there."""
    for _ in range(MOVES):
        try:
            tunnel_start.ensure(directory.path, local)
        except AddressTakenError:
            local = LocalAddress.random()
            continue
        directory.write_kubeconfig(f"https://{local}", plugin(directory.path, local))
        return local
    raise AddressTakenError(
        f"the tunnel to the cluster {directory.name} finds no address on {os.uname().nodename}",
        hint="Another user may be taking them all: see `ss -ltn`.",
    )


def request_stop(directory: Directory) -> bool:
    """Ask a cluster's head to end it in order, in the way that its kubeconfig goes. Whether it heard."""
    if local_address(directory.path / "kubeconfig") is None:
        return ask_to_stop(directory.path)
    try:
        head = running_head(directory.path)
        argv = step_argv(head, directory.path, agent_argv(directory.path, "--stop"))
        environment = submission_environment(os.environ)
        result = subprocess.run(
            [*argv[:1], "--input=none", *argv[1:]],
            env=environment,
            timeout=STOP_LIMIT,
            capture_output=True,
            check=False,
        )
    except (ClusterError, OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0
