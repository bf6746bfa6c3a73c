"""Tests that cannot pass, and why. ``docs/conformance.md`` explains them; everything else has to pass."""

from __future__ import annotations

NO_CGROUPS = "there are no cgroups for a user of Slurm, and the test reads their files"
EXPECTED = {
    "Pod InPlace Resize Container": NO_CGROUPS,
}


def reason_for(name: str) -> str:
    """Why a test of this name must fail; empty if it must not."""
    return next((reason for part, reason in EXPECTED.items() if part in name), "")
