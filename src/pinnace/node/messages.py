"""Messages between the agent and the processes beside it: init, and the helpers that it has forked.

Each child has a channel of its own to its parent: a pair of sockets that keep message boundaries. Signals are left to
the kernel and to Slurm.

    init        -> agent    Fabric (with descriptors), ServicesChanged, Drained, Failed
    agent       -> init     Stop, Leave
    helper      -> agent    Stop; the pod runner: Leave; the one that watches the head: Failed
    agent       -> helper   EvictPod (the pod runner), Stop (ranks), Notifications (native sockets, with a descriptor)
"""

from __future__ import annotations

import array
import json
import socket
from dataclasses import asdict, dataclass
from typing import Any

from pinnace.spec import ServiceRecord

MAX_MESSAGE = 1 << 16  # bytes
MAX_DESCRIPTORS = 16
TUN_QUEUE = "tun"  # begins the name of a queue of the TUN device


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End in order: pods get their grace period."""


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Nothing runs on the node any more: end now. The agent ends with ``exit_code``."""

    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class EvictPod:
    """End the pod that the node is for."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The node's network is there. ``names`` say what the descriptors are that come with it, in their order.

    ``tun0``, …: the queues of the TUN device. ``egress``: the listener to which connections to the outside are
    redirected. ``proxy`` and ``sockets``: socket pairs for sockets of the fabric (``network.netns_sockets``).
    ``notify``: the listener for notifications (``node.notify_keeper``). ``shims``: that of ``node.shim_server``, if
    pods may be in the host's network.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Notifications:
    """The descriptor of the notifications of one container. The server of native sockets knows it by its ``key``."""

    key: int


@dataclass(frozen=True, kw_only=True)
class ServicesChanged:
    """How the processes are that init supervises."""

    services: tuple[ServiceRecord, ...]


@dataclass(frozen=True, kw_only=True)
class Drained:
    """No pod runs on the node any more, and it ends; on the head: nor on any other node."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Why init has ended, or why the node has to."""

    reason: str


Message = Stop | Leave | EvictPod | Fabric | Notifications | ServicesChanged | Drained | Failed
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Stop, Leave, EvictPod, Fabric, Notifications, ServicesChanged, Drained, Failed)
}


def encode(message: Message) -> bytes:
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode()


def decode(data: bytes) -> Message:
    fields: dict[str, Any] = json.loads(data)
    kind = KINDS[fields.pop("kind")]
    if kind is ServicesChanged:
        fields["services"] = tuple(map(ServiceRecord.from_json, fields["services"]))
    elif kind is Fabric:
        fields["names"] = tuple(fields["names"])
    return kind(**fields)


class Channel:
    """One end of a pair of sockets."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(one), Channel(other)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, *descriptors: int) -> bool:
        """Without waiting: a reader that is gone is noticed by its end, and one that is slow gets the next report.

        Whether the message was sent.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg([encode(message)], rights, socket.MSG_DONTWAIT)  # send_fds ignores its flags
        except OSError:
            return False
        return True

    def receive(self, *, wait: bool = True) -> Message | None:
        """The next message; None when the other end is gone, or without ``wait`` if there is none."""
        return self.receive_with_descriptors(wait=wait)[0]

    def receive_with_descriptors(self, *, wait: bool = True) -> tuple[Message | None, list[int]]:
        descriptors = array.array("i")
        room = socket.CMSG_LEN(MAX_DESCRIPTORS * descriptors.itemsize)
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(MAX_MESSAGE, room, flags)
        except OSError:
            return None, []
        for _, _, rights in ancillary:
            descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
        return (decode(data) if data else None), list(descriptors)

    def close(self) -> None:
        self._socket.close()
