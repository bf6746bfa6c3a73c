"""Starts the shims of pods in the host's network namespace: those of the RuntimeClass ``host-network``.

A process that has left the host's network namespace cannot return, and all of the node's have left it. The agent has
not. For a pod of this class containerd therefore executes, in place of its shim, a client (``services.shim_client``)
that passes the command, its environment and its standard streams to the agent, over a UNIX socket of the node. The
agent forks a process that enters all namespaces of the node but the network, and executes the shim there.

    agent ── one process per request ── its child, in the node's PID namespace ── containerd-shim start
    init  ── containerd-shim ── runc ── containers

The shim leaves a daemon behind, which init adopts. So nothing has to run while no pod starts, a process that is killed
on the way fails one start, which the kubelet repeats, and all shims end with the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from pinnace.node.forking import SLURM_SIGNALS, fork
from pinnace.sandbox import cgroups
from pinnace.sandbox.entering import ALL_BUT_NETWORK, become_root_of
from pinnace.sandbox.environment import restrict_environment
from pinnace.sandbox.linux import die_with_parent
from pinnace.sandbox.one_user import ignore_id_changes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

REQUEST_TIMEOUT = 10.0  # seconds for a client to say what it wants
SHIM_TIMEOUT = 60.0  # seconds for a shim to leave its daemon behind; it takes a tenth of one
STANDARD_STREAMS = 3
BACKLOG = 128


def listen(path: Path) -> socket.socket:
    """The socket for clients. Only root of the node can connect."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def start_shim(connection: socket.socket, shim: str, first: int, *, has_cgroup: bool) -> None:
    """Serve one client, in a process of its own. ``first`` is the node's first process.

    ``has_cgroup``: whether the node has one of its own. From outside of it, runc could move nothing into a pod's.
    """
    request, streams = receive(connection)
    if is_gone(connection):  # containerd has given up, and would not know of the shim
        return
    close_others([connection.fileno(), *streams])
    if has_cgroup:
        cgroups.join(first)
    restrict_environment()  # pods that see the node's processes shall not see the user's variables
    many = become_root_of(first, ALL_BUT_NETWORK)
    if not many:
        ignore_id_changes()
    child = fork(lambda: run_shim(connection, [shim, *request["arguments"]], request, streams))
    os.waitpid(child, 0)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A client's request and its standard streams."""
    connection.settimeout(REQUEST_TIMEOUT)
    data, streams, _, _ = socket.recv_fds(connection, 1, STANDARD_STREAMS)
    if len(streams) != STANDARD_STREAMS:
        raise OSError("a client has not passed its standard streams")
    while received := connection.recv(1 << 16):
        data += received
    request: dict[str, Any] = json.loads(data)
    return request, streams


def is_gone(connection: socket.socket) -> bool:
    """Whether a client has closed its connection, not only its own direction of it."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def close_others(kept: Iterable[int]) -> None:
    """Close all descriptors but these and the standard ones: those of the agent are not for the node."""
    for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:  # noqa: PTH208 - strings
        with contextlib.suppress(OSError):  # the one that the list was read with
            os.close(number)


def run_shim(connection: socket.socket, argv: list[str], request: dict[str, Any], streams: list[int]) -> None:
    """Run a shim's command to its end, and tell the client its exit code.

    The shim looks at its parent, so that has to be a process of the node.
    """
    stdin, stdout, stderr = streams
    code = subprocess.call(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=request["environment"],
        cwd=request["directory"],
        preexec_fn=_prepare,
        timeout=SHIM_TIMEOUT,
    )
    connection.send(str(code).encode())


def _prepare() -> None:
    """Containers inherit which signals are ignored."""
    die_with_parent(signal.SIGKILL)
    for number in SLURM_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
