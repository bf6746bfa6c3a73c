"""The network of the bed: a switch in a namespace of its own, with one link per host.

The input of ``ip -batch`` and ``tc -batch`` comes from pure functions. Two bridges: the cluster's network, and that of
the host ``outside``; the switch routes between them and translates nothing.
"""

from __future__ import annotations

import subprocess

from testbed import firewall
from testbed.errors import BedError
from testbed.plan import FAST_NETWORK, Host, Plan, Role

__all__ = ["batch", "connect", "host_batch", "link_batch", "port_batch", "qdisc", "shape", "switch_batch"]

COMMAND_LIMIT = 20.0
SLOW_RATE = "200mbit"  # of the network that names lead to, in a bed with two
BURST = "4m"  # more than the largest segment, or the kernel cuts them up


def bridge(host: Host) -> str:
    return "br-outside" if host.role is Role.OUTSIDE else "br-cluster"


def switch_batch(plan: Plan) -> list[str]:
    lines = ["link set lo up"]
    for host in (plan.login, plan.outside):
        name = bridge(host)
        lines += [
            f"link add {name} type bridge forward_delay 0",
            f"addr add {host.gateway}/{host.network.prefixlen} dev {name}",
            f"link set {name} up",
        ]
    if plan.two_nets:
        lines += ["link add br-fast type bridge forward_delay 0", "link set br-fast up"]
    return lines


def link_batch(host: Host, holder: int) -> list[str]:
    """A veth made directly between the two namespaces: nothing shows up on the machine in between."""
    return [
        f"link add {host.port} type veth peer name eth0 netns {holder}",
        f"link set {host.port} master {bridge(host)} up",
    ]


def port_batch(host: Host, *, up: bool) -> list[str]:
    return [f"link set {host.port} {'up' if up else 'down'}"]


def host_batch(host: Host) -> list[str]:
    return [
        "link set lo up",
        f"addr add {host.address}/{host.network.prefixlen} dev eth0",
        "link set eth0 up",
        f"route add default via {host.gateway}",
    ]


def fast_link_batch(host: Host, holder: int) -> list[str]:
    """The link to the fast network, in a bed with two."""
    return [
        f"link add {host.fast_port} type veth peer name eth1 netns {holder}",
        f"link set {host.fast_port} master br-fast up",
    ]


def fast_host_batch(host: Host) -> list[str]:
    return [f"addr add {host.fast_address}/{FAST_NETWORK.prefixlen} dev eth1", "link set eth1 up"]


def qdisc(plan: Plan) -> str:
    """What makes a link slow, in each direction; two hosts are two links apart. Empty for as fast as it goes."""
    link_rate = plan.link_rate or (SLOW_RATE if plan.two_nets else "")
    if plan.link_delay:
        rate = f" rate {link_rate}" if link_rate else ""
        return f"netem delay {plan.link_delay}{rate} limit 100000"
    return f"tbf rate {link_rate} burst {BURST} latency 50ms" if link_rate else ""


def batch(tool: str, holder: int, lines: list[str], *, what: str) -> None:
    """Run ``ip -batch`` or ``tc -batch`` in the network namespace of a holder."""
    if not lines:
        return
    command = ["nsenter", f"--net=/proc/{holder}/ns/net", tool, "-batch", "-"]
    result = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, timeout=COMMAND_LIMIT, check=False
    )
    if result.returncode:
        hint = ""
        if tool == "tc":
            hint = "Does this kernel have sch_netem (for --link-delay) and sch_tbf (for --link-rate)?"
        raise BedError(f"{what}: {tool} says: {result.stderr.strip()}", hint=hint)


def connect(plan: Plan, host: Host, switch: int, holder: int) -> None:
    """Plug a host in."""
    batch("ip", switch, link_batch(host, holder), what=f"The link of {host.name}")
    batch("ip", holder, host_batch(host), what=f"The address of {host.name}")
    if plan.two_nets and host.role is not Role.OUTSIDE:
        batch("ip", switch, fast_link_batch(host, holder), what=f"The fast link of {host.name}")
        batch("ip", holder, fast_host_batch(host), what=f"The fast address of {host.name}")
    shape(plan, host, switch, holder)
    firewall.close(plan, host, holder)


def shape(plan: Plan, host: Host, switch: int, holder: int) -> None:
    if discipline := qdisc(plan):
        what = f"The rate and delay of {host.name}"
        batch("tc", switch, [f"qdisc replace dev {host.port} root {discipline}"], what=what)
        batch("tc", holder, [f"qdisc replace dev eth0 root {discipline}"], what=what)
