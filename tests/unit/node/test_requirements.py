"""What an agent demands of its host."""

from __future__ import annotations

import pytest

from pinnace.errors import NodeError
from pinnace.node import requirements

DAY = 86400.0
MADE = 1_800_000_000.0


@pytest.mark.parametrize("now", [MADE, MADE - DAY + 60, MADE + 30 * DAY])
def test_a_clock_by_which_the_certificates_are_valid_will_do(now: float) -> None:
    """A job may wait in the queue for weeks, so a clock that is ahead is not to be told from one that is right."""
    requirements.require_clock(MADE, now)


@pytest.mark.parametrize(
    ("now", "said"), [(MADE - 3 * DAY, "its clock is 3 days behind"), (MADE + 500 * DAY, "its clock is 500 days ahead")]
)
def test_a_clock_by_which_they_are_not_is_named(now: float, said: str) -> None:
    with pytest.raises(NodeError, match=said) as caught:
        requirements.require_clock(MADE, now)
    assert "NTP" in caught.value.hint
