"""The TUN device that carries a node's traffic to the other nodes and to the outside.

With ``IFF_VNET_HDR`` and segmentation offload the kernel passes TCP segments of up to 64 KiB without checksums, so one
packet that Python moves carries as much as forty Ethernet frames. See linux/virtio_net.h for the header.
"""

from __future__ import annotations

import fcntl
import os
import struct

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
TUN_F_CSUM = 0x01
TUN_F_TSO4 = 0x02
TUN_F_TSO6 = 0x04

NAME = "wire0"  # of the device; pods with hostNetwork see it
VNET_HEADER = 10  # bytes of struct virtio_net_hdr
MTU = 65520
MAX_FRAME = VNET_HEADER + 65536  # bytes that one read(2) of the device gives


def open_tun(name: str = NAME) -> int:
    """Create the device in the caller's network namespace. Returns its file descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return descriptor
