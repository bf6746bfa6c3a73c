"""The connections to Slurm: which Slurm a job is submitted to, and as which user.

Without ``spec.cluster`` it is the command line of the bridge's own user, if the bridge's administrator has allowed that
for the job's namespace, and otherwise the Secret ``slurm`` of the namespace. A Secret is only ever read in the
namespace of the job that names it, so no user can run jobs as another. Only a slurmrestd that the administrator has
named is called, and a Secret with a ``url`` is used for that server alone.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import http
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.bridge.observer import Observer
from pinnace.bridge.policy import EVERY, Policy
from pinnace.errors import ApiError, MissingError, SlurmError, SlurmUnreachableError
from pinnace.slurm import rest
from pinnace.slurm.commandline import CommandLine
from pinnace.validation import api_name, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.slurmjob import SlurmJob
    from pinnace.kube.client import Api
    from pinnace.slurm.backend import Backend

DEFAULT_SECRET = "slurm"  # noqa: S105 - a name
SECRET_MAX_AGE = 5.0  # seconds before a Secret is read again
MAX_CONNECTIONS = 16  # of a namespace: each polls all jobs of a site
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
TOKEN = re.compile(r"[!-~]{1,8192}")

__all__ = ["EVERY", "Connection", "Connections", "Policy", "data_of", "own_directory", "secret_data"]


@dataclass
class Connection:
    """A Slurm with its observer. ``origin`` is the data of its Secret, ``read`` when that was read."""

    observer: Observer
    origin: object
    read: float = field(default_factory=time.monotonic)

    @property
    def backend(self) -> Backend:
        return self.observer.backend


class Connections:
    """All connections of the bridge."""

    def __init__(self, api: Callable[[], Api], policy: Policy, notify: Callable[[str], None]) -> None:
        self._api, self.policy, self._notify = api, policy, notify
        self._connections: dict[tuple[str, ...], Connection] = {}
        self._lock = threading.Lock()

    def of(self, job: SlurmJob, *, known: bool = False) -> Connection:
        """The connection for a job. ``known``: it is submitted, and is followed even if its Secret is deleted."""
        cluster = job.spec.get("cluster")
        if cluster is None and self.policy.may_use_command_line(job.namespace):
            return self._connect(("",), _command_line, None)
        secret = cluster["secret"] if cluster else DEFAULT_SECRET
        url = (cluster or {}).get("url", "")
        key = (job.namespace, secret, url)
        with self._lock:
            connection = self._connections.get(key)
        if known and connection and time.monotonic() - connection.read < SECRET_MAX_AGE:
            return connection
        try:
            data = secret_data(self._api(), job.namespace, secret)
        except MissingError as error:
            if known and connection:
                return connection
            hint = "" if cluster else f" (the bridge's own command line is not for namespace {job.namespace})"
            raise SlurmUnreachableError(f"no credentials for Slurm: {error.message}{hint}") from error
        return self._connect(key, lambda: self._rest(job.namespace, url, data), data)

    def _connect(self, key: tuple[str, ...], make: Callable[[], Backend], origin: object) -> Connection:
        with self._lock:
            known = self._connections.get(key)
            if known is None:
                self._make_room(key[0])
                known = self._connections[key] = Connection(Observer(make(), self._notify), origin)
            elif known.origin != origin:
                known.observer.backend, known.origin = make(), origin
            known.read = time.monotonic()
            return known

    def _make_room(self, namespace: str) -> None:
        """Drop idle connections of a namespace if it has too many; refuse if that is not enough."""
        mine = [key for key in self._connections if key[0] == namespace]
        if len(mine) < MAX_CONNECTIONS:
            return
        for key in mine:
            if self._connections[key].observer.idle:
                del self._connections[key]
        if sum(key[0] == namespace for key in self._connections) >= MAX_CONNECTIONS:
            raise SlurmUnreachableError(
                f"jobs of namespace {namespace} use {MAX_CONNECTIONS} Secrets at once, which is the most"
            )

    def _rest(self, namespace: str, url: str, data: dict[str, str]) -> rest.Rest:
        """Bridge Operator's Secrets call the token a password, and do not say where it belongs: the job does."""
        address, user, token = url or data.get("url", ""), data.get("username", ""), data.get("token", "")
        token = token or data.get("password", "")
        if not address or not user or not token:
            raise SlurmError("the Secret must have `url`, `username` and `token`")
        if not USER.fullmatch(user) or not TOKEN.fullmatch(token.strip()):
            raise SlurmError("the `username` or the `token` in the Secret has characters that none can have")
        endpoint = self.policy.slurmrestd_at(address)
        if data.get("url") and self.policy.slurmrestd_at(data["url"]) != endpoint:
            raise SlurmError("the Secret's token belongs to another `url` than the job names")
        # The bridge uses its own file access only for its own user: another user's Secret may have that name.
        mine = self.policy.files and self.policy.may_use_command_line(namespace) and user == getpass.getuser()
        directory = data.get("directory") or (own_directory() if mine else rest.TMP)
        return rest.Rest(endpoint, user, token.strip(), directory=directory, files=mine)

    def all(self) -> list[Connection]:
        with self._lock:
            return list(self._connections.values())

    def command_line(self) -> Connection | None:
        """The connection of the command line, if it is allowed, for queries that belong to no job."""
        if not self.policy.command_line:
            return None
        return self._connect(("",), _command_line, None)


def own_directory() -> str:
    """Where the jobs of the bridge's own user run that do not say where, and what belongs to them is kept."""
    return str(Path.home() / "slurmjobs")


def _command_line() -> CommandLine:
    return CommandLine(own_directory())


def secret_data(api: Api, namespace: str, name: str) -> dict[str, str]:
    """The data of a Secret, without values that are not text."""
    found = {}
    for key, value in data_of(api, namespace, "secrets", name).items():
        try:
            found[key] = base64.b64decode(value).decode()
        except (UnicodeDecodeError, binascii.Error):
            continue
    return found


def data_of(api: Api, namespace: str, plural: str, name: str) -> dict[str, Any]:
    """The data of a ConfigMap or a Secret."""
    path = f"/api/v1/namespaces/{api_name(namespace)}/{plural}/{api_name(name)}"
    try:
        found: dict[str, Any] = api.get(path).get("data") or {}
    except ApiError as error:
        if error.code in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN}:
            raise MissingError(f"{plural.removesuffix('s')} {name}: {printable(str(error), 300)}") from error
        raise
    return found
