"""The TUN device that carries a node's traffic to the other nodes and to the outside.

With ``IFF_VNET_HDR`` and segmentation offload the kernel hands over TCP segments of up to 64 KiB with their checksums
left open, so a packet that Python moves is worth forty of an Ethernet's. See linux/virtio_net.h for the header.
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

NAME = "wire0"
VNET_HEADER = 10  # bytes of struct virtio_net_hdr
MTU = 65520
FRAME = VNET_HEADER + 65536


def open_tun(name: str = NAME) -> int:
    """Make the device in the network namespace of the caller. Gives the descriptor that packets go through."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return descriptor
