"""Where an API server is and as which user to speak with it: from a kubeconfig, or from a pod's service account.

Our own kubeconfigs are JSON, which nodes read with the standard library alone; users may bring others, in YAML.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import ssl
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.errors import CredentialError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_LIMIT = 120.0  # seconds for a call of a credential plugin; ours may have to start a tunnel, which has 90
TOKEN_MARGIN = 60.0  # seconds before a token expires at which the plugin is asked for a new one


@dataclass(frozen=True, kw_only=True)
class Access:
    """An API server and a user of it."""

    server: str
    name: str = ""  # what its certificate says, if that is not its address
    authority: str = ""  # PEM; empty: the system's authorities
    verified: bool = True
    certificate: bytes = b""  # PEM: the user's certificate and key
    token: Callable[[], str] | None = field(default=None, compare=False)
    plugin: CredentialPlugin | None = field(default=None, compare=False)  # which gives a token or a certificate
    namespace: str = "default"

    def at(self, host: str, port: int, name: str) -> Access:
        """The same API server at another address and TLS name: those that it has outside the fabric."""
        return replace(self, server=f"https://{host}:{port}", name=name)

    def headers(self) -> dict[str, str]:
        token = self.token() if self.token else self.plugin.token() if self.plugin else ""
        return {"Authorization": f"Bearer {token}"} if token else {}

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority or None)
        if not self.verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate = self.certificate or (self.plugin.certificate() if self.plugin else b"")
        if certificate:
            # OpenSSL takes keys only from files. This one is in memory: a process that is killed leaves no key behind.
            with os.fdopen(os.memfd_create("pinnace"), "wb") as pem:
                pem.write(certificate)
                pem.flush()
                context.load_cert_chain(f"/proc/self/fd/{pem.fileno()}")
        return context

    @staticmethod
    def from_document(document: dict[str, Any], *, context: str = "", base: Path = Path()) -> Access:
        """From a parsed kubeconfig. Files that it names are relative to ``base``."""
        chosen = _entry(document, "context", context or document["current-context"])
        cluster = _entry(document, "cluster", chosen["cluster"])
        user = _entry(document, "user", chosen["user"])
        certificate, token, plugin = _content(user, "client-certificate", base), None, None
        if certificate:
            certificate += b"\n" + _content(user, "client-key", base)
        if "token" in user or "tokenFile" in user:
            file = base / user.get("tokenFile", "")
            token = (lambda: file.read_text().strip()) if "tokenFile" in user else (lambda: str(user["token"]))
        elif "exec" in user:
            plugin = CredentialPlugin(user["exec"], base)
        return Access(
            server=cluster["server"],
            name=cluster.get("tls-server-name", ""),
            authority=_content(cluster, "certificate-authority", base).decode(),
            verified=not cluster.get("insecure-skip-tls-verify", False),
            certificate=certificate,
            token=token,
            plugin=plugin,
            namespace=chosen.get("namespace", "default"),
        )

    @staticmethod
    def from_file(path: Path, *, context: str = "") -> Access:
        """From a kubeconfig in JSON or YAML."""
        try:
            text = path.read_text()
            try:
                document = json.loads(text)
            except ValueError:
                import yaml  # noqa: PLC0415 - the agent has no PyYAML and does not need it

                document = yaml.safe_load(text)
            return Access.from_document(document, context=context, base=path.parent)
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path} is no usable kubeconfig: {error!r}", hint="Say which with --kubeconfig."
            ) from error

    @staticmethod
    def in_pod() -> Access:
        """From the service account of the pod in which we run. Kubernetes renews the token in its file."""
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        return Access(
            server=f"https://{host}:{port}",
            authority=(SERVICE_ACCOUNT / "ca.crt").read_text(),
            token=lambda: (SERVICE_ACCOUNT / "token").read_text().strip(),
            namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
        )


def _entry(document: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """An entry of a kubeconfig's lists."""
    for entry in document[f"{kind}s"]:
        if entry["name"] == name:
            found: dict[str, Any] = entry[kind]
            return found
    raise LookupError(f"no {kind} {name!r}")


def _content(entry: dict[str, Any], key: str, base: Path) -> bytes:
    """What an entry of a kubeconfig holds under a key, in place or in a file."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    return (base / entry[key]).read_bytes() if entry.get(key) else b""


class CredentialPlugin:
    """A credential plugin of a kubeconfig: a command that prints a token, or a certificate and its key."""

    def __init__(self, spec: dict[str, Any], base: Path) -> None:
        command = str(spec["command"])
        self._argv = [str(base / command) if "/" in command else command, *(spec.get("args") or ())]
        self._variables = {entry["name"]: entry["value"] for entry in spec.get("env") or ()}
        self._variables["KUBERNETES_EXEC_INFO"] = json.dumps(
            {"apiVersion": spec["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
        )
        self._status: dict[str, Any] = {}
        self._expires = dt.datetime.min.replace(tzinfo=dt.UTC)

    def token(self) -> str:
        """The token; empty if the plugin gives a certificate."""
        return str(self._current().get("token") or "")

    def certificate(self) -> bytes:
        """The certificate and its key, in PEM; empty if the plugin gives a token."""
        status = self._current()
        return "\n".join(status.get(key) or "" for key in ("clientCertificateData", "clientKeyData")).strip().encode()

    def _current(self) -> dict[str, Any]:
        if dt.datetime.now(dt.UTC) > self._expires:
            self._status = self._call()
            ends = self._status.get("expirationTimestamp")
            self._expires = (
                dt.datetime.fromisoformat(ends) - dt.timedelta(seconds=TOKEN_MARGIN)
                if ends
                else dt.datetime.max.replace(tzinfo=dt.UTC)
            )
        return self._status

    def _call(self) -> dict[str, Any]:
        try:
            result = subprocess.run(
                self._argv, env=os.environ | self._variables, capture_output=True, text=True, check=True,
                timeout=PLUGIN_LIMIT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            return dict(json.loads(result.stdout)["status"])
        except subprocess.CalledProcessError as error:
            raise CredentialError(f"the kubeconfig's credential plugin failed: {error.stderr.strip()}") from error
        except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
            raise CredentialError(
                f"the kubeconfig's credential plugin cannot be used: {error}", hint=f"It is {self._argv[0]}."
            ) from error
