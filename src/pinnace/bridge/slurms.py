"""Which Slurm a job goes to, and as whom.

Without ``spec.cluster`` it is the command line of the bridge's own user, if whoever started the bridge has allowed that
for the job's namespace, and else what the Secret ``slurm`` of the namespace says. A Secret is only ever read in the
namespace of the job that names it, so nobody can run as another.
"""

from __future__ import annotations

import base64
import getpass
import http
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pinnace.bridge.backend import UnreachableError
from pinnace.bridge.commandline import CommandLine
from pinnace.bridge.observer import Observer
from pinnace.bridge.rest import Rest, base_url
from pinnace.controlplane.api import ApiError
from pinnace.errors import PinnaceError, SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.bridge.backend import Backend
    from pinnace.bridge.slurmjob import Job
    from pinnace.controlplane.api import Api

DEFAULT_SECRET = "slurm"  # noqa: S105 - a name
EVERY = "*"
FRESH = 5.0  # seconds for which a Secret is not read again


class MissingError(PinnaceError):
    """A ConfigMap or Secret, or a key of it, is not there (yet)."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What whoever started the bridge allows: the command line, UNIX sockets, and the files of the cluster."""

    command_line: frozenset[str] = frozenset()  # namespaces; ``*`` for all
    sockets: frozenset[str] = frozenset()
    files: bool = False

    def may_use_command_line(self, namespace: str) -> bool:
        return bool({namespace, EVERY} & self.command_line)


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
        self._api, self._policy, self._tell = api, policy, tell
        self._connections: dict[tuple[str, ...], Connection] = {}
        self._lock = threading.Lock()

    def of(self, job: Job, *, known: bool = False) -> Connection:
        """The connection for a job. ``known``: it is submitted, and is followed even if its Secret is gone by now."""
        cluster = job.spec.get("cluster")
        if cluster is None and self._policy.may_use_command_line(job.namespace):
            return self._connect(("",), CommandLine, None)
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
            raise UnreachableError(f"no credentials for Slurm: {error.message}{hint}") from error
        return self._connect(key, lambda: self._rest(job.namespace, url, data), data)

    def _connect(self, key: tuple[str, ...], make: Callable[[], Backend], origin: object) -> Connection:
        with self._lock:
            known = self._connections.get(key)
            if known is None:
                known = self._connections[key] = Connection(Observer(make(), self._tell), origin)
            elif known.origin != origin:
                known.observer.backend, known.origin = make(), origin
            known.read = time.monotonic()
            return known

    def _rest(self, namespace: str, url: str, data: dict[str, str]) -> Rest:
        """Bridge Operator's Secrets call the token a password."""
        address, user, token = url or data.get("url", ""), data.get("username", ""), data.get("token", "")
        token = token or data.get("password", "")
        if not address or not user or not token:
            raise SlurmError("the Secret must have `url`, `username` and `token`")
        place = base_url(address)
        if place.startswith("unix:") and place.removeprefix("unix://") not in self._policy.sockets:
            raise SlurmError(f"this bridge does not use {place}", hint="Start it with --socket PATH to allow that.")
        # Our own rights only for ourselves: a Secret of somebody else may claim to be ours.
        mine = self._policy.files and self._policy.may_use_command_line(namespace) and user == getpass.getuser()
        return Rest(address, user, token, directory=data.get("directory", ""), files=mine)

    def all(self) -> list[Connection]:
        with self._lock:
            return list(self._connections.values())

    def first(self) -> Connection | None:
        """The command line's connection, for what belongs to no job."""
        if not self._policy.command_line:
            return None
        return self._connect(("",), CommandLine, None)


def secret_data(api: Api, namespace: str, name: str) -> dict[str, str]:
    data = data_of(api, namespace, "secrets", name)
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def data_of(api: Api, namespace: str, plural: str, name: str) -> dict[str, Any]:
    """The data of a ConfigMap or a Secret."""
    try:
        found: dict[str, Any] = api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}").get("data") or {}
    except ApiError as error:
        if error.code in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN}:
            raise MissingError(f"{plural.removesuffix('s')} {name}: {error}") from error
        raise
    return found
