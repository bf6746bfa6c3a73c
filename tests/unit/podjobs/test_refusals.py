"""When to try again."""

from __future__ import annotations

import errno
import http.client

import pytest

from pinnace.errors import ApiError, SlurmError, SlurmSubmitLimitError, SlurmUnreachableError, UsageError
from pinnace.podjobs.refusals import Refusal, refusal_of


def test_our_own_refusals_and_silence() -> None:
    assert refusal_of(UsageError("no")) is Refusal.PERMANENT
    assert refusal_of(SlurmError("invalid partition")) is Refusal.PERMANENT
    assert refusal_of(SlurmSubmitLimitError("AssocMaxSubmitJobLimit")) is Refusal.SUBMIT_LIMIT
    assert refusal_of(SlurmUnreachableError("`sbatch` did not answer for 60 s")) is Refusal.TRANSIENT
    broken = (ConnectionRefusedError(), TimeoutError(), http.client.BadStatusLine(""), OSError(113, "no route"))
    for silence in (*broken, ApiError(503, "etcd has no leader")):
        assert refusal_of(silence) is Refusal.TRANSIENT


@pytest.mark.parametrize(
    "error",
    [
        http.client.InvalidURL("URL can't contain control characters"),
        ApiError(422, "Pod is invalid: try again"),
        ApiError(403, "namespace is being terminated"),
        OSError(errno.E2BIG, "Argument list too long"),
        ValueError("embedded null byte"),
    ],
)
def test_what_a_pod_can_bring_about_does_not_hold_those_of_others(error: Exception) -> None:
    assert refusal_of(error) is Refusal.PERMANENT
