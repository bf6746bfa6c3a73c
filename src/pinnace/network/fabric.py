"""The inside of the fabric on one node, as data: sysctls, interfaces and routes, and text for ``nft``."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from pinnace.network.rtnetlink import Address, LinkUp, Route
from pinnace.network.tun import MTU, NAME

if TYPE_CHECKING:
    from pinnace.network.addresses import Ranges
    from pinnace.network.rtnetlink import Change

EVERYWHERE = IPv4Network("0.0.0.0/0")
QUEUE_LENGTH = 2000  # packets that wait in the TUN device


def sysctls(last_group: int) -> dict[str, str]:
    """The sysctls of the fabric's network namespace. ``last_group`` is the highest group ID in its user namespace."""
    return {
        "net/ipv4/ip_forward": "1",
        "net/ipv4/conf/all/rp_filter": "0",
        "net/ipv4/conf/default/rp_filter": "0",
        "net/ipv4/ip_unprivileged_port_start": "0",
        "net/ipv4/ping_group_range": f"0 {last_group}",
    }


def interfaces(ranges: Ranges, index: int) -> list[Change]:
    """The TUN device with this node's address, and the default route through it.

    Addresses of the node's own pods have routes of their own, which come and go with the pods.
    """
    address = ranges.node(index)
    return [
        LinkUp(device="lo"),
        Address(device=NAME, address=address),
        LinkUp(device=NAME, mtu=MTU, queue_length=QUEUE_LENGTH),
        Route(destination=ranges.nodes, device=NAME, source=address),
        Route(destination=ranges.pods, device=NAME, source=address),
        Route(destination=ranges.pods_of(index)),
        Route(destination=EVERYWHERE, device=NAME, source=address),
    ]


def nft_rules(ranges: Ranges, index: int, proxy_port: int) -> str:
    """For ``nft -f``: TCP to the outside is redirected to our proxy, other packets are masqueraded.

    Packets with a source address that is not this node's are dropped: a pod may send packets of any kind.

    kube-proxy's chains come first (priority ``dstnat``, -100), so connections to Services never match these rules.
    """
    inside = ", ".join(str(network) for network in (*ranges.all, "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4"))
    return f"""
table ip pinnace {{
  set inside {{ type ipv4_addr; flags interval; elements = {{ {inside} }} }}
  chain outward {{
    type nat hook prerouting priority -90;
    ip daddr {ranges.resolver} tcp dport 53 redirect to :{proxy_port}
    ip daddr != @inside fib daddr type != local meta l4proto tcp redirect to :{proxy_port}
  }}
  chain outward_local {{
    type nat hook output priority -90;
    ip daddr {ranges.resolver} tcp dport 53 redirect to :{proxy_port}
    ip daddr != @inside fib daddr type != local meta l4proto tcp redirect to :{proxy_port}
  }}
  chain leaving {{
    type nat hook postrouting priority 100;
    ip saddr {ranges.pods} ip daddr != @inside masquerade
  }}
  chain source_filter {{
    type filter hook postrouting priority 200;
    oifname "{NAME}" ip saddr != {{ {ranges.node(index)}, {ranges.pods_of(index)} }} drop
  }}
}}
"""
