"""The packet filter of every host of a bed with ``--firewall``: pure functions of the plan, for ``nft -f``.

It is a strict site's. Login and compute hosts reach each other on Slurm's own ports alone; compute hosts reach each
other on these and on one range for users; out of the cluster go HTTP and HTTPS. What is not allowed is dropped without
an answer, so that whoever tries waits. ssh leads from the outside to the login host.
"""

from __future__ import annotations

import subprocess

from testbed import slurmconf
from testbed.errors import BedError
from testbed.plan import CLUSTER_NETWORK, FAST_NETWORK, Host, Plan, Role

__all__ = ["USER_PORTS", "close", "rules"]

USER_PORTS = "40000-40199"  # between compute hosts, for what users run
SSH_PORT = 22
WEB_PORTS = "80, 443"
COMMAND_LIMIT = 20.0


def rules(plan: Plan, host: Host) -> str:
    """What a host accepts and sends."""
    if host.role is Role.OUTSIDE:
        return ""
    accepted = "\n".join(f"    {rule} accept" for rule in accepted_by(plan, host))
    return f"""\
table inet firewall {{
  chain input {{
    type filter hook input priority 0; policy drop;
    iifname "lo" accept
    ct state established,related accept
    ip protocol icmp accept
{accepted}
  }}
  chain output {{
    type filter hook output priority 0; policy accept;
    oifname "lo" accept
    ct state established,related accept
    ip daddr {{ {CLUSTER_NETWORK}, {FAST_NETWORK} }} accept
    tcp dport {{ {WEB_PORTS} }} accept
    drop
  }}
}}
"""


def accepted_by(plan: Plan, host: Host) -> list[str]:
    """Who may begin a connection to which ports of a host."""
    login = plan.login.address
    compute = f"{plan.compute[0].address}-{plan.compute[-1].address}"
    fast = f"{plan.compute[0].fast_address}-{plan.compute[-1].fast_address}"  # of a bed with two networks
    if host.role is Role.LOGIN:
        daemons = f"{slurmconf.CTLD_PORT}, {slurmconf.DBD_PORT}, {slurmconf.REST_PORT}, {slurmconf.SRUN_PORTS}"
        return [f"ip saddr {compute} tcp dport {{ {daemons} }}", f"tcp dport {SSH_PORT}"]
    return [
        f"ip saddr {login} tcp dport {slurmconf.SLURMD_PORT}",
        f"ip saddr {compute} tcp dport {{ {slurmconf.SLURMD_PORT}, {slurmconf.SRUN_PORTS}, {USER_PORTS} }}",
        f"ip saddr {fast} tcp dport {USER_PORTS}",
    ]


def close(plan: Plan, host: Host, holder: int) -> None:
    """Load the rules of a host into its network namespace."""
    if not plan.firewall or not (text := rules(plan, host)):
        return
    command = ["nsenter", f"--net=/proc/{holder}/ns/net", "nft", "-f", "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_LIMIT, check=False)
    if result.returncode:
        raise BedError(f"The firewall of {host.name}: nft says: {result.stderr.strip()}")
