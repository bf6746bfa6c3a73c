"""What sbatch's words mean."""

from __future__ import annotations

import pytest

from pinnace.errors import SlurmError, UsageError
from pinnace.provisioner.refusals import Kind, kind


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
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", Kind.FULL),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", Kind.NEVER),
        ("sbatch: error: invalid partition specified: nope", Kind.NEVER),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", Kind.NEVER),
    ],
)
def test_when_to_try_again(text: str, expected: Kind) -> None:
    assert kind(SlurmError(text)) is expected


def test_our_own_refusals_and_silence() -> None:
    assert kind(UsageError("no")) is Kind.NEVER
    assert kind(OSError("gone")) is Kind.NOT_NOW
