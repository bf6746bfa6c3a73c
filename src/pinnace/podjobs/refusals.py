"""When a submission that was refused may succeed.

While Slurm or the API cannot be reached, nothing is submitted for anybody. So nothing counts as such that a pod can
bring about: what the API says of a pod, or a request or command that cannot even be made, is a matter of that pod.
``slurm.errors`` is as careful with what sbatch says.
"""

from __future__ import annotations

import errno
import http
import http.client
import socket
import ssl
from enum import StrEnum

from pinnace.errors import ApiError, SlurmSubmitLimitError, SlurmUnreachableError

UNREACHABLE_PAUSE = 2.0  # seconds for which nothing is submitted while slurmctld does not answer
SUBMIT_LIMIT_PAUSE = 5.0  # seconds for which nothing is submitted once the site's limit is reached
_BUSY_API = {http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.GATEWAY_TIMEOUT}
_UNREACHABLE = {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN}


class Refusal(StrEnum):
    """When it may succeed."""

    TRANSIENT = "transient"  # Slurm, or the API, does not answer: nobody's fault
    SUBMIT_LIMIT = "submit limit"  # the user has as many jobs as the site allows
    PERMANENT = "permanent"  # not like this; perhaps when something has been changed


def refusal_of(error: Exception) -> Refusal:
    if isinstance(error, SlurmUnreachableError) or is_unreachable(error):
        return Refusal.TRANSIENT
    return Refusal.SUBMIT_LIMIT if isinstance(error, SlurmSubmitLimitError) else Refusal.PERMANENT


def is_unreachable(error: Exception) -> bool:
    """Whether a connection could not be made, or broke off, or the API has no time for anybody."""
    if isinstance(error, ApiError):
        return error.code in _BUSY_API
    if isinstance(error, http.client.HTTPException):
        return not isinstance(error, http.client.InvalidURL)
    lost = isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError))
    return lost or (isinstance(error, OSError) and error.errno in _UNREACHABLE)
