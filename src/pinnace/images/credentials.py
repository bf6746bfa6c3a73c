"""Credentials for registries, as `docker login` and `podman login` store them."""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCKER_HUB = "https://index.docker.io/v1/"  # the key of its login in the file, since its first version
TOKEN_USER = "<token>"  # noqa: S105 - the user name that a credential helper gives for an identity token
HELPER_TIMEOUT = 30.0  # seconds for a credential helper


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A user name and password, or an identity token; ``source`` is the file or helper that they are from."""

    source: str
    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def files(environment: Mapping[str, str], home: Path) -> list[Path]:
    """The files with logins, in the order in which podman reads them; docker has only the last."""
    if file := environment.get("REGISTRY_AUTH_FILE"):
        return [Path(file)]
    runtime = environment.get("XDG_RUNTIME_DIR")
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker")
    return [
        *([Path(runtime) / "containers/auth.json"] if runtime else []),
        Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json",
        docker / "config.json",
    ]


def find(registry: str, path: str, environment: Mapping[str, str], home: Path) -> Credentials | None:
    """The user's login for a repository, if there is one. The most specific entry counts."""
    for file in files(environment, home):
        try:
            document = dict(json.loads(file.read_text()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError) as error:
            raise RegistryError(f"{file} cannot be read: {error}", hint="Log in again, or correct the file.") from None
        if found := in_document(document, registry, path, str(file)):
            return found
    return None


def in_document(document: dict[str, Any], registry: str, path: str, source: str) -> Credentials | None:
    helper = document.get("credHelpers", {}).get(registry) or document.get("credsStore")
    for key in keys(registry, path):
        entry = document.get("auths", {}).get(key)
        if entry and (found := in_entry(entry, source)):
            return found
    return ask_helper(helper, DOCKER_HUB if registry == "docker.io" else registry, source) if helper else None


def keys(registry: str, path: str) -> list[str]:
    """The keys under which a login may be stored, the most specific first."""
    parts = [registry, *path.split("/")]
    names = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return [
        *names,
        *([DOCKER_HUB] if registry == "docker.io" else []),
        f"https://{registry}",
        f"https://{registry}/v1/",
    ]


def in_entry(entry: dict[str, str], source: str) -> Credentials | None:
    if token := entry.get("identitytoken"):
        return Credentials(source=source, identity_token=token)
    user, password = entry.get("username", ""), entry.get("password", "")
    if packed := entry.get("auth"):
        try:
            user, _, password = base64.b64decode(packed, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise RegistryError(f"a login in {source} is damaged", hint="Log in again.") from None
    return Credentials(source=source, user=user, password=password.rstrip("\0")) if user else None


def ask_helper(helper: str, registry: str, source: str) -> Credentials | None:
    """Ask a credential helper, over its standard input, so that nothing is on a command line."""
    argv = [f"docker-credential-{helper}", "get"]
    try:
        result = subprocess.run(
            argv, input=registry, capture_output=True, text=True, check=False, timeout=HELPER_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryError(f"{argv[0]}, which {source} names, cannot be asked: {error}") from None
    if result.returncode:
        return None  # it has none
    try:
        answer = json.loads(result.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError):
        raise RegistryError(f"{argv[0]}, which {source} names, gives no login") from None
    if user == TOKEN_USER:
        return Credentials(source=argv[0], identity_token=secret)
    return Credentials(source=argv[0], user=user, password=secret)
