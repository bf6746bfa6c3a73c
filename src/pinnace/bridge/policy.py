"""What whoever runs the bridge allows: whose jobs run as its user, which servers are called, which directories of a
node helper pods may mount. Tenants choose among these and get nothing else.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from pinnace.errors import PinnaceError
from pinnace.slurm.endpoint import Endpoint
from pinnace.validation import is_plain, printable

EVERY = "*"
# Kinds of volumes that Pod Security "restricted" lets a pod have, without those that act for the pod's creator at
# mount time: `csi` calls a driver in the bridge's name, `projected` can hold a token of a service account.
VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "secret"})
MOUNTED = "A PersistentVolumeClaim can hold any volume."


class ForbiddenError(PinnaceError):
    """Whoever runs the bridge has not allowed this."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Nothing is allowed that is not named."""

    command_line: frozenset[str] = frozenset()  # namespaces whose jobs run as the bridge's user; ``*`` for all
    slurmrestd: tuple[Endpoint, ...] = ()
    s3: tuple[Endpoint, ...] = ()
    host_paths: tuple[str, ...] = ()  # directories of nodes
    options: frozenset[str] = frozenset()  # of sbatch, besides those of the table
    files: bool = False  # whether the files of the user's own jobs are here, also of those through slurmrestd
    jobs: int = 2000  # of a namespace in Slurm at once

    def may_use_command_line(self, namespace: str) -> bool:
        return bool({namespace, EVERY} & self.command_line)

    def slurmrestd_at(self, url: str) -> Endpoint:
        """The slurmrestd that an address means, as whoever runs the bridge wrote it: only that is ever called."""
        return _allowed(self.slurmrestd, Endpoint.parse(url), "--slurmrestd")

    def s3_at(self, endpoint: str, *, secure: bool) -> Endpoint:
        found = Endpoint.parse(endpoint, default="https" if secure else "http")
        return _allowed(self.s3, found, "--s3")

    def check_volume(self, source: dict[str, object]) -> None:
        """Whether a helper pod may mount what a tenant names: what a pod of the tenant's own could, and no more."""
        kinds = set(source) - {"name"}
        if kinds == {"hostPath"}:
            self._check_host_path(source["hostPath"])
            return
        if len(kinds) != 1 or not kinds <= VOLUMES:
            named = printable(", ".join(sorted(kinds)), 100) or "nothing"
            raise ForbiddenError(f"volume: {named} is not one of {', '.join(sorted(VOLUMES))}", hint=MOUNTED)
        if _has_token(source):
            raise ForbiddenError("volume: tokens of service accounts are not mounted for jobs")

    def _check_host_path(self, source: object) -> None:
        path = source.get("path") if isinstance(source, dict) else None
        if not isinstance(path, str) or not is_plain(path) or not path.startswith("/") or ".." in path.split("/"):
            raise ForbiddenError("volume: hostPath has no path that could be mounted")
        real = posixpath.normpath(path)
        if not any(real == root or real.startswith(f"{root.rstrip('/')}/") for root in self.host_paths):
            raise ForbiddenError(
                f"volume: hostPath {printable(real, 200)} is not allowed by this bridge (--host-path)", hint=MOUNTED
            )


def _has_token(value: object) -> bool:
    """Whether a volume source asks for a service account's token, however deep it says so."""
    if isinstance(value, dict):
        return "serviceAccountToken" in value or any(map(_has_token, value.values()))
    return isinstance(value, list) and any(map(_has_token, value))


def _allowed(known: tuple[Endpoint, ...], wanted: Endpoint, option: str) -> Endpoint:
    found = [entry for entry in known if entry.covers(wanted)]
    if not found:
        raise ForbiddenError(
            f"this bridge does not call {printable(str(wanted), 200)}; whoever runs it can allow that ({option})",
        )
    return max(found, key=lambda entry: len(entry.path))
