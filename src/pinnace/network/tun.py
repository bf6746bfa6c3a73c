"""The TUN device that carries a node's traffic to the other nodes and to the outside.

With ``IFF_VNET_HDR`` and segmentation offload the kernel passes TCP segments of up to 64 KiB without checksums, so one
packet that we move carries as much as forty Ethernet frames. See linux/virtio_net.h for the header.

With ``IFF_MULTI_QUEUE`` the device has several descriptors. The kernel spreads flows over them and keeps the packets of
a flow in order.
"""

from __future__ import annotations

import fcntl
import os
import struct

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TUN = 0x0001
IFF_MULTI_QUEUE = 0x0100
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
TUN_F_CSUM = 0x01
TUN_F_TSO4 = 0x02
TUN_F_TSO6 = 0x04

NAME = "wire0"  # of the device; pods with hostNetwork see it
VNET_HEADER = 10  # bytes of struct virtio_net_hdr
MTU = 65520
MAX_QUEUES = 4  # each costs two threads and, towards every peer, a connection
MAX_FRAME = VNET_HEADER + 65536  # bytes that one read(2) of the device gives


def queue_count() -> int:
    """How many queues the device of this node has: no more than there are CPUs to serve them."""
    return min(MAX_QUEUES, len(os.sched_getaffinity(0)))


def open_tun(name: str = NAME, queues: int = 1) -> list[int]:
    """Create the device in the caller's network namespace. Returns the file descriptors of its queues."""
    request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE)
    descriptors = [os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC) for _ in range(queues)]
    for descriptor in descriptors:
        fcntl.ioctl(descriptor, TUNSETIFF, request)
        fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return descriptors
