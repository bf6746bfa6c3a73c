"""Leader election: of several bridges for one namespace only the one works that holds the namespace's Lease.

The algorithm is client-go's. A leader that ends in order releases the Lease. One that died on the
same host is seen to be dead at once; any other counts as dead when its Lease has not changed for LEASE_DURATION. Clocks
are never compared. A leader that cannot renew its Lease ends itself at RENEW_DEADLINE, before others may take it.
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

LEASE_NAME = "pinnace-bridge"
CLUSTER_WIDE_NAMESPACE = "kube-system"  # where the Lease is of a bridge for all namespaces
LEASE_DURATION = 15.0  # seconds without a renewal after which others take the Lease
RENEW_DEADLINE = 10.0  # seconds without a renewal after which a leader gives up
RENEW_PERIOD = 4.0  # seconds between renewals
RETRY_PERIOD = 0.5  # seconds between tries to acquire the Lease

log = logging.getLogger(__name__)


class LeaseLostError(PinnaceError):
    """Another bridge may be the leader from now on, so this one must not work."""


class LeaderElection:
    """For one namespace, or, if it is empty, for all."""

    def __init__(self, api: Callable[[], Api], namespace: str) -> None:
        self._api, self._namespace = api, namespace or CLUSTER_WIDE_NAMESPACE
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{api_name(self._namespace)}/leases"
        self._identity = process_identity(os.getpid())
        self._holder = ""
        self._version, self._version_since = "", 0.0  # the last version of the Lease, and when it was first seen

    def acquire(self) -> None:
        """Wait until we are the leader."""
        said = ""
        while (holder := self._try_acquire_or_renew()) != self._identity:
            if holder and holder != said:
                log.info("namespace %s: waiting for the bridge %s to end", self._namespace, holder)
                said = holder
            time.sleep(RETRY_PERIOD)
        log.info("namespace %s: leading", self._namespace)

    def renew(self) -> NoReturn:
        """Stay the leader; raises LeaseLostError when we are not any more."""
        renewed = time.monotonic()
        while True:
            time.sleep(RENEW_PERIOD)
            holder = self._try_acquire_or_renew()
            if holder == self._identity:
                renewed = time.monotonic()
            elif holder:
                raise LeaseLostError(f"the bridge {holder} has taken over namespace {self._namespace}")
            elif time.monotonic() - renewed > RENEW_DEADLINE:
                raise LeaseLostError(
                    f"the Lease of namespace {self._namespace} could not be renewed for {RENEW_DEADLINE:.0f} s"
                )

    def release(self) -> None:
        """Let the next leader begin at once."""
        with contextlib.suppress(PinnaceError, *API_UNREACHABLE):
            if self._try_acquire_or_renew() == self._identity:
                self._write("")

    def _try_acquire_or_renew(self) -> str:
        """Acquire or renew the Lease, if we may. Who holds it now; empty if that is not known."""
        try:
            self._holder = self._acquire_or_renew() or self._holder
        except API_UNREACHABLE as error:
            log.warning("Lease of namespace %s: %s", self._namespace, error or type(error).__name__)
            return ""
        except ApiError as error:
            if error.code == http.HTTPStatus.FORBIDDEN and not is_terminating(error):
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

    def _acquire_or_renew(self) -> str:
        found = self._api().get_or_none(f"{self._path}/{LEASE_NAME}")
        if found is None:
            about = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE_NAME}}
            self._api().request("POST", self._path, {**about, "spec": self._spec(self._identity)})
            return self._identity
        holder = printable(str((found.get("spec") or {}).get("holderIdentity") or ""), 200)
        version = str(found["metadata"]["resourceVersion"])
        if version != self._version:
            self._version, self._version_since = version, time.monotonic()
        silent = time.monotonic() - self._version_since > LEASE_DURATION
        if holder in {"", self._identity} or silent or is_dead(holder):
            self._write(self._identity, version)
            return self._identity
        return holder

    def _write(self, holder: str, version: str = "") -> None:
        metadata = {"resourceVersion": version} if version else {}
        self._api().patch(f"{self._path}/{LEASE_NAME}", {"metadata": metadata, "spec": self._spec(holder)})

    @staticmethod
    def _spec(holder: str) -> dict[str, Any]:
        stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": holder, "leaseDurationSeconds": int(LEASE_DURATION), "renewTime": stamp}


def pid_namespace() -> str:
    """This host, and the PID namespace in which we are: in the same one we see whether a process is alive."""
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def process_identity(pid: int) -> str:
    """A name for a process that no other ever has: its PID namespace, its PID, and when it began."""
    try:
        # The name of a process is any bytes.
        begun = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        begun = ""
    return f"{pid_namespace()}/{pid}/{begun}"


def is_dead(holder: str) -> bool:
    """Whether a holder was a process of this PID namespace that has ended."""
    where, _, pid = holder.rpartition("/")[0].rpartition("/")
    return where == pid_namespace() and pid.isascii() and pid.isdigit() and process_identity(int(pid)) != holder


def is_terminating(error: ApiError) -> bool:
    """Whether the API refuses because the namespace is being deleted."""
    return "being terminated" in str(error)
