"""A bed that these tests have for themselves: they want its hosts idle, and install things that others would find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conftest import TEST_STATE, bed_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Bed


@pytest.fixture(scope="session")
def bed_of_its_own() -> Iterator[Bed]:
    with bed_at(TEST_STATE.with_name(f"{TEST_STATE.name}-own")) as bed:
        yield bed


@pytest.fixture(scope="session")
def bed(bed_of_its_own: Bed) -> Bed:
    return bed_of_its_own
