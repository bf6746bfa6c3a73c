"""Why sbatch refused, and what that means for when to try again. In Slurm's own words, which are its only interface."""

from __future__ import annotations

import http.client
from enum import StrEnum

from pinnace.controlplane.api import ApiError
from pinnace.errors import UsageError

PAUSE = 2.0  # seconds for which nothing is submitted while slurmctld does not answer
FULL_PAUSE = 5.0  # seconds for which nothing is submitted once the site's limit is reached
_BUSY = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "connection refused",
    "connection reset",
    "connection timed out",
    "temporarily unable",
    "try again",
    "did not answer",
    "transport endpoint",
    "communication connection failure",
    "slurmctld is",
    "unexpected message received",
    "insane message length",
    "backup mode",
    "controller is not available",
    "unspecified error",
)
_FULL = ("submitjob", "job submit limit", "submit limit", "maxsubmit", "too many jobs", "max job", "maxjob")


class Kind(StrEnum):
    """When it may succeed."""

    NOT_NOW = "not now"  # Slurm does not answer: nobody's fault
    FULL = "full"  # the user has as many jobs as the site allows
    NEVER = "never"  # not like this; perhaps when something has been changed


def kind(error: Exception) -> Kind:
    text = str(error).lower()
    if isinstance(error, UsageError):
        return Kind.NEVER
    if isinstance(error, (ApiError, OSError, http.client.HTTPException)):
        return Kind.NOT_NOW
    if any(words in text for words in _FULL):
        return Kind.FULL
    if any(words in text for words in _BUSY):
        return Kind.NOT_NOW
    return Kind.NEVER
