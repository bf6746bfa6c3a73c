"""Why sbatch refused, and what that means for when to try again. In Slurm's own words, which are its only interface.

While Slurm or the API cannot be reached, nothing is submitted for anybody. So nothing counts as such that a pod can
bring about: what the API says of a pod, or a request or command that cannot even be made, is a matter of that pod.
"""

from __future__ import annotations

import errno
import http
import http.client
import re
import socket
import ssl
from enum import StrEnum

from pinnace.errors import ApiError, SlurmError

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
_BUSY_API = {http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.GATEWAY_TIMEOUT}
_UNREACHABLE = {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN}
_SAYS = re.compile(r"^(sbatch: )*(error: )?")
_LIMIT = re.compile(r"(assoc|qos|max)\w+")  # such as AssocMaxSubmitJobLimit, QOSMaxGRESPerJob
_FAILED = "batch job submission failed: "
_SILENT = ("slurm temporarily unable", "`sbatch` did not answer")
_FULL = ("submitjob", "job submit limit", "submit limit", "maxsubmit", "too many jobs", "max job", "maxjob")


class Kind(StrEnum):
    """When it may succeed."""

    NOT_NOW = "not now"  # Slurm, or the API, does not answer: nobody's fault
    FULL = "full"  # the user has as many jobs as the site allows
    NEVER = "never"  # not like this; perhaps when something has been changed


def kind(error: Exception) -> Kind:
    if is_silence(error):
        return Kind.NOT_NOW
    if not isinstance(error, SlurmError):
        return Kind.NEVER
    reasons, verdict = own_words(error.message)
    if any(words in (reasons or verdict) for words in _FULL):  # the verdict is one for all limits
        return Kind.FULL
    if any(words in verdict for words in _BUSY):
        return Kind.NOT_NOW
    return Kind.NEVER


def own_words(text: str) -> tuple[str, str]:
    """What Slurm itself says of a submission: the limits that it names, and its verdict, in small letters.

    Other lines repeat what a pod has asked for, which may be words such as these.
    """
    lines = [_SAYS.sub("", line).strip().lower() for line in text.split("\n")]
    reasons = [line for line in lines if _LIMIT.fullmatch(line)]
    verdicts = [line.partition(_FAILED)[2] for line in lines if line.startswith(_FAILED)]
    return " ".join(reasons), " ".join([*verdicts, *(line for line in lines if line.startswith(_SILENT))])


def is_silence(error: Exception) -> bool:
    """Whether a connection could not be made, or broke off, or the API has no time for anybody."""
    if isinstance(error, ApiError):
        return error.code in _BUSY_API
    if isinstance(error, http.client.HTTPException):
        return not isinstance(error, http.client.InvalidURL)
    lost = isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError))
    return lost or (isinstance(error, OSError) and error.errno in _UNREACHABLE)
