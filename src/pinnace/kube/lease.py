"""Of several bridges for one namespace, one works: whoever holds its Lease. The others wait until that one has ended.

A holder that ends in order gives its Lease back; of one that died on the same host this is seen at once; any other that
is silent for too long counts as dead. Clocks are never compared, only how long a Lease has not changed. A holder that
cannot renew its Lease ends itself before others may take it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http
import http.client
import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pinnace.errors import ApiError, PinnaceError
from pinnace.kube.client import API_UNREACHABLE
from pinnace.validation import api_name, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinnace.kube.client import Api

NAME = "pinnace-bridge"
EVERYWHERE = "kube-system"  # where the Lease is of a bridge for all namespaces
DURATION = 15.0  # seconds of silence after which a holder counts as dead
DEADLINE = 10.0  # seconds after which a holder that could not renew gives up
RENEWAL = 4.0
POLL = 0.5

log = logging.getLogger(__name__)


class LostError(PinnaceError):
    """Another bridge may work from now on, so this one must not."""


class Lease:
    """That of a namespace, or of all."""

    def __init__(self, api: Callable[[], Api], namespace: str) -> None:
        self._api, self._namespace = api, namespace or EVERYWHERE
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{api_name(self._namespace)}/leases"
        self._me = identity(os.getpid())
        self._holder = ""
        self._seen, self._since = "", 0.0  # a version of the Lease, and since when there was no other

    def acquire(self) -> None:
        """Wait until it is ours."""
        said = ""
        while (holder := self._tried()) != self._me:
            if holder and holder != said:
                log.info("namespace %s: waiting for the bridge %s to end", self._namespace, holder)
                said = holder
            time.sleep(POLL)
        log.info("namespace %s: leading", self._namespace)

    def hold(self) -> NoReturn:
        """Renew it for ever; raises when it is lost."""
        renewed = time.monotonic()
        while True:
            time.sleep(RENEWAL)
            holder = self._tried()
            if holder == self._me:
                renewed = time.monotonic()
            elif holder:
                raise LostError(f"the bridge {holder} has taken over namespace {self._namespace}")
            elif time.monotonic() - renewed > DEADLINE:
                raise LostError(f"the Lease of namespace {self._namespace} could not be renewed for {DEADLINE:.0f} s")

    def release(self) -> None:
        """Let the next one begin at once."""
        with contextlib.suppress(PinnaceError, *API_UNREACHABLE):
            if self._tried() == self._me:
                self._write("")

    def _tried(self) -> str:
        """Take or renew it, if we may. Who has it now; nobody if that is not known."""
        try:
            self._holder = self._claimed() or self._holder
        except API_UNREACHABLE as error:
            log.warning("Lease of namespace %s: %s", self._namespace, error or type(error).__name__)
            return ""
        except ApiError as error:
            if error.code == http.HTTPStatus.FORBIDDEN and not is_ending(error):
                hint = "It needs the verbs get, create and patch for leases of coordination.k8s.io there."
                raise PinnaceError(
                    f"this bridge may not lead namespace {self._namespace}: {error}", hint=hint
                ) from error
            if error.code in {http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN}:
                return self._holder  # without the namespace nobody can have it
            if error.code != http.HTTPStatus.CONFLICT:
                log.warning("Lease of namespace %s: %s", self._namespace, error)
            return ""  # somebody was faster
        except Exception as error:  # noqa: BLE001 - a Lease that we do not understand is as one that we cannot read
            log.warning("Lease of namespace %s: %r", self._namespace, error)
            return ""
        return self._holder

    def _claimed(self) -> str:
        try:
            found = self._api().get(f"{self._path}/{NAME}")
        except ApiError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            about = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}}
            self._api().request("POST", self._path, {**about, "spec": self._spec(self._me)})
            return self._me
        holder = printable(str((found.get("spec") or {}).get("holderIdentity") or ""), 200)
        version = str(found["metadata"]["resourceVersion"])
        if version != self._seen:
            self._seen, self._since = version, time.monotonic()
        silent = time.monotonic() - self._since > DURATION
        if holder in {"", self._me} or silent or is_dead(holder):
            self._write(self._me, version)
            return self._me
        return holder

    def _write(self, holder: str, version: str = "") -> None:
        metadata = {"resourceVersion": version} if version else {}
        self._api().patch(f"{self._path}/{NAME}", {"metadata": metadata, "spec": self._spec(holder)})

    @staticmethod
    def _spec(holder: str) -> dict[str, Any]:
        stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": holder, "leaseDurationSeconds": int(DURATION), "renewTime": stamp}


def place() -> str:
    """This host, and the PID namespace in which we are: processes of the same place can be seen."""
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def identity(pid: int) -> str:
    """A process for all time: its place, its number there, and when it began."""
    try:
        # The name of a process is any bytes.
        begun = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        begun = ""
    return f"{place()}/{pid}/{begun}"


def is_dead(holder: str) -> bool:
    """Whether a holder was a process that could be seen from here, and is no more."""
    where, _, pid = holder.rpartition("/")[0].rpartition("/")
    return where == place() and pid.isascii() and pid.isdigit() and identity(int(pid)) != holder


def is_ending(error: ApiError) -> bool:
    """Whether the API refuses because the namespace is on its way out."""
    return "being terminated" in str(error)
