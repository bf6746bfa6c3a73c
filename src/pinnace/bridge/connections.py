"""Which Slurm a job goes to, and as whom.

Without ``spec.cluster`` it is the command line of the bridge's own user, if whoever started the bridge has allowed that
for the job's namespace, and else what the Secret ``slurm`` of the namespace says. A Secret is only ever read in the
namespace of the job that names it, so nobody can run as another. Only a slurmrestd is called that whoever runs the
bridge has named, and a Secret that says where its token belongs is used nowhere else.
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
from pinnace.errors import ApiError, PinnaceError, SlurmError, SlurmUnreachableError
from pinnace.slurm import rest
from pinnace.slurm.commandline import CommandLine
from pinnace.validation import api_name, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.slurmjob import Job
    from pinnace.kube.client import Api
    from pinnace.slurm.backend import Backend

DEFAULT_SECRET = "slurm"  # noqa: S105 - a name
FRESH = 5.0  # seconds for which a Secret is not read again
MOST = 16  # connections of a namespace: each asks for all jobs of a site again and again
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
TOKEN = re.compile(r"[!-~]{1,8192}")

__all__ = ["EVERY", "Connection", "MissingError", "Policy", "Slurms", "data_of", "own_directory", "secret_data"]


class MissingError(PinnaceError):
    """A ConfigMap or Secret, or a key of it, is not there (yet)."""


@dataclass
class Connection:
    """A Slurm that was used, and how it is now."""

    observer: Observer
    origin: object
    read: float = field(default_factory=time.monotonic)

    @property
    def backend(self) -> Backend:
        return self.observer.backend


class Slurms:
    """All connections, each with its observer."""

    def __init__(self, api: Callable[[], Api], policy: Policy, tell: Callable[[str], None]) -> None:
        self._api, self.policy, self._tell = api, policy, tell
        self._connections: dict[tuple[str, ...], Connection] = {}
        self._lock = threading.Lock()

    def of(self, job: Job, *, known: bool = False) -> Connection:
        """The connection for a job. ``known``: it is submitted, and is followed even if its Secret is gone by now."""
        cluster = job.spec.get("cluster")
        if cluster is None and self.policy.may_use_command_line(job.namespace):
            return self._connect(("",), _command_line, None)
        secret = cluster["secret"] if cluster else DEFAULT_SECRET
        url = (cluster or {}).get("url", "")
        key = (job.namespace, secret, url)
        with self._lock:
            connection = self._connections.get(key)
        if known and connection and time.monotonic() - connection.read < FRESH:
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
                known = self._connections[key] = Connection(Observer(make(), self._tell), origin)
            elif known.origin != origin:
                known.observer.backend, known.origin = make(), origin
            known.read = time.monotonic()
            return known

    def _make_room(self, namespace: str) -> None:
        """Forget connections of a namespace that nothing is watched through; refuse if that does not help."""
        mine = [key for key in self._connections if key[0] == namespace]
        if len(mine) < MOST:
            return
        for key in mine:
            if self._connections[key].observer.idle:
                del self._connections[key]
        if sum(key[0] == namespace for key in self._connections) >= MOST:
            raise SlurmUnreachableError(f"jobs of namespace {namespace} use {MOST} Secrets at once, which is the most")

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
        # Our own rights only for ourselves: a Secret of somebody else may claim to be ours.
        mine = self.policy.files and self.policy.may_use_command_line(namespace) and user == getpass.getuser()
        directory = data.get("directory") or (own_directory() if mine else rest.TMP)
        return rest.Rest(endpoint, user, token.strip(), directory=directory, files=mine)

    def all(self) -> list[Connection]:
        with self._lock:
            return list(self._connections.values())

    def first(self) -> Connection | None:
        """The command line's connection, for what belongs to no job."""
        if not self.policy.command_line:
            return None
        return self._connect(("",), _command_line, None)


def own_directory() -> str:
    """Where the jobs of the bridge's own user run that do not say where, and what belongs to them is kept."""
    return str(Path.home() / "slurmjobs")


def _command_line() -> CommandLine:
    return CommandLine(own_directory())


def secret_data(api: Api, namespace: str, name: str) -> dict[str, str]:
    """The data of a Secret, as far as it is text."""
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
