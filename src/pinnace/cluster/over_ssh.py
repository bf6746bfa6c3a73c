"""A kubeconfig for a machine outside the site that reaches the login node with ssh, and needs nothing else.

Its credential plugin is ssh itself: one connection, which stays for a while, forwards a port of that machine to where
the login node reaches the API, and brings the certificate. So the kubeconfig has no secret in it.
"""

from __future__ import annotations

import re
import secrets
import shlex
from typing import Any
from urllib.parse import urlsplit

from pinnace.cluster.credential import API_VERSION
from pinnace.cluster.tunnel_start import FIRST_PORT, LAST_PORT
from pinnace.errors import UsageError

DESTINATION = re.compile(r"(ssh://)?[A-Za-z0-9_]([A-Za-z0-9_.@:%\[\]-])*")
# The connection stays, for the next commands, while it is used and so long after. One that is dead is noticed.
OPTIONS = {
    "ControlMaster": "auto",
    "ControlPersist": "15m",
    "ExitOnForwardFailure": "yes",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
}
# Commands that begin at the same moment may both try to be the one whose connection stays; ssh's own failure is 255.
SCRIPT = """\
mkdir -p -m 700 "$HOME/.ssh" || exit 1
reach() {{ ssh -n -o ControlPath="$HOME/.ssh/pinnace-{port}" {options} -L {forward} {login} {command}; }}
reach
code=$?
if [ $code = 255 ]; then sleep 1; reach; code=$?; fi
exit $code
"""


def ssh_script(login: str, *, port: int, target: str, command: list[str]) -> str:
    """The shell's script that opens the connection, or uses the one that is there, and prints the credential."""
    if not DESTINATION.fullmatch(login):
        raise UsageError(f"{login!r} is no host that ssh could reach", hint="Write it as for ssh: user@login.site.org.")
    options = " ".join(f"-o {name}={value}" for name, value in OPTIONS.items())
    return SCRIPT.format(
        port=port,
        options=options,
        forward=f"127.0.0.1:{port}:{target}",
        login=shlex.quote(login),
        command=shlex.quote(shlex.join(command)),
    )


def ssh_kubeconfig(own: dict[str, Any], login: str, command: list[str]) -> dict[str, Any]:
    """The user's ``own`` kubeconfig, as it is to be on a machine that reaches the site by ``ssh login``."""
    port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)
    cluster, name = own["clusters"][0], own["current-context"]
    target = urlsplit(cluster["cluster"]["server"]).netloc
    script = ssh_script(login, port=port, target=target, command=command)
    plugin = {"apiVersion": API_VERSION, "command": "sh", "args": ["-c", script], "interactiveMode": "Never"}
    reached = cluster["cluster"] | {"server": f"https://127.0.0.1:{port}"}
    return own | {
        "clusters": [{"name": name, "cluster": reached}],
        "users": [{"name": name, "user": {"exec": plugin}}],
    }
