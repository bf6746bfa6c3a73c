"""The credential plugin of kubeconfigs that lead through a tunnel: it starts the tunnel, and gives the certificate.

    python -m pinnace.cluster.credential --cluster DIRECTORY [--listen ADDRESS:PORT]

kubectl and other clients call it before they connect, and again when what it gave expires. So a tunnel that has ended
is there again with the next command, and within two minutes for programs that stay.
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

from pinnace.cluster import tunnel_start
from pinnace.cluster.tunnel_start import LocalAddress
from pinnace.errors import AddressTakenError, ClusterError, PinnaceError
from pinnace.interpreter import python_argv

API_VERSION = "client.authentication.k8s.io/v1"
VALID_SECONDS = 120
CREDENTIAL = "credential.json"  # of secrets/: what the plugin prints, but for the time
EXPIRES = "@EXPIRES@"
# Python takes longer to start than kubectl to ask. If the tunnel runs, the shell is enough: $1 is the cluster's
# directory, $2 where kubectl will connect to, and the rest the command that starts the tunnel. The brackets keep this
# text from matching itself.
SCRIPT = f"""\
if read -r pid < "$1/secrets/tunnel-$(uname -n).pid" && [ -O "/proc/$pid" ] &&
    grep -qa 'pinnace[.]cluster[.]tunnel' "/proc/$pid/cmdline" && grep -qaF "$2" "/proc/$pid/cmdline" &&
    expires=$(date -u -d '+{VALID_SECONDS} seconds' +%Y-%m-%dT%H:%M:%SZ)
then
    exec sed "s/{EXPIRES}/$expires/" "$1/secrets/{CREDENTIAL}"
fi 2>/dev/null
shift 2
exec "$@"
"""


def exec_credential(admin: dict[str, Any], expires: str) -> dict[str, Any]:
    """What a plugin has to print, with the certificate and key of a kubeconfig."""
    user = admin["users"][0]["user"]
    return {
        "apiVersion": API_VERSION,
        "kind": "ExecCredential",
        "status": {
            "clientCertificateData": base64.b64decode(user["client-certificate-data"]).decode(),
            "clientKeyData": base64.b64decode(user["client-key-data"]).decode(),
            "expirationTimestamp": expires,
        },
    }


def read_admin(directory: Path) -> dict[str, Any]:
    """The kubeconfig of a cluster's administrator."""
    return dict(json.loads((directory / "secrets" / "admin.kubeconfig").read_text()))


def credential_argv(directory: Path, local: LocalAddress | None) -> list[str]:
    """The command that gives the certificate, and starts the tunnel if there is one."""
    listen = ["--listen", str(local)] if local else []
    return python_argv("pinnace.cluster.credential", "--cluster", str(directory), *listen)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinnace-credential")
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--listen", type=LocalAddress.parse, help="where the tunnel is, if there is one")
    args = parser.parse_args(argv)
    try:
        if not (args.cluster / "cluster.json").exists():
            raise ClusterError(f"the cluster {args.cluster.name} is gone", hint="See `pinnace list`.")
        try:
            if args.listen:
                tunnel_start.ensure(args.cluster, args.listen)
        except AddressTakenError as error:
            from pinnace.cluster import directory, reaching  # noqa: PLC0415 - takes time, and is seldom needed

            local = reaching.move(directory.Directory(args.cluster), args.listen)
            raise AddressTakenError(
                error.message, hint=f"Your kubeconfig leads to {local} now: run the command again."
            ) from error
        expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=VALID_SECONDS)
        credential = exec_credential(read_admin(args.cluster), expires.strftime("%Y-%m-%dT%H:%M:%SZ"))
        sys.stdout.write(json.dumps(credential))
    except PinnaceError as error:
        sys.stderr.write(f"pinnace: {error.message}\n{error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
