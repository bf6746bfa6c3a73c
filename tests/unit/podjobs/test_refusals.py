"""What sbatch's words mean."""

from __future__ import annotations

import errno
import http.client

import pytest

from pinnace.errors import ApiError, SlurmError, UsageError
from pinnace.podjobs.refusals import Kind, kind

POLICY = (
    "sbatch: error: Batch job submission failed: "
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            Kind.NOT_NOW,
        ),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Kind.NOT_NOW),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", Kind.NOT_NOW),
        ("sbatch: error: AssocMaxSubmitJobLimit", Kind.FULL),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", Kind.FULL),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}", Kind.FULL),
        (POLICY, Kind.FULL),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}", Kind.NEVER),
        (f"sbatch: error: QOSMaxGRESPerJob\n{POLICY}", Kind.NEVER),
        ("`sbatch` did not answer for 60 s", Kind.NOT_NOW),
        ("sbatch: error: invalid partition specified: maxjob", Kind.NEVER),
        ("sbatch: error: Invalid --time specification: try again", Kind.NEVER),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", Kind.NEVER),
        ("sbatch: error: invalid partition specified: nope", Kind.NEVER),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", Kind.NEVER),
    ],
)
def test_when_to_try_again(text: str, expected: Kind) -> None:
    assert kind(SlurmError(text)) is expected


def test_our_own_refusals_and_silence() -> None:
    assert kind(UsageError("no")) is Kind.NEVER
    broken = (ConnectionRefusedError(), TimeoutError(), http.client.BadStatusLine(""), OSError(113, "no route"))
    for silence in (*broken, ApiError(503, "etcd has no leader")):
        assert kind(silence) is Kind.NOT_NOW


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
    assert kind(error) is Kind.NEVER
