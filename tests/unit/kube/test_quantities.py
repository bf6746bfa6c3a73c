"""Quantities, compared as Kubernetes does."""

from __future__ import annotations

from decimal import Decimal

import pytest

from pinnace.kube.quantities import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("1Ki", 1024),
        ("1.5Gi", 1610612736),
        ("2G", 2 * 10**9),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("500m", Decimal("0.5")),
        ("8Ei", 8 * 2**60),
    ],
)
def test_quantities(text: str, number: Decimal | int) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "one"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)
