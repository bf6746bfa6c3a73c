"""Medians, spread, and tests that tell a difference from noise."""

from __future__ import annotations

import itertools
import math

import pytest

from pinnace.bench.statistics import mann_whitney, midranks, ratio_interval, summary


def test_a_summary_has_the_quartiles() -> None:
    found = summary([5, 1, 3, 2, 4])
    assert (found.count, found.median, found.low, found.high, found.least, found.most) == (5, 3, 2, 4, 1, 5)
    assert summary([7]).low == summary([7]).high == 7


def test_an_interval_holds_the_ratio_and_is_the_same_again() -> None:
    low, high = ratio_interval([9, 10, 11, 10], [20, 21, 19, 20])
    assert 0.4 < low <= 0.5 <= high < 0.6
    assert ratio_interval([9, 10, 11, 10], [20, 21, 19, 20]) == (low, high)


@pytest.mark.parametrize(
    ("left", "right", "p"),
    [
        ([1, 2, 3], [4, 5, 6], 0.1),  # of the tables
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
        ([1, 4, 5], [2, 3, 6], 1.0),
        ([1, 1, 1], [1, 1, 1], 1.0),
    ],
)
def test_p_values_are_exact(left: list[float], right: list[float], p: float) -> None:
    assert math.isclose(mann_whitney(left, right), p)
    assert math.isclose(mann_whitney(right, left), p)


def test_ties_are_counted_as_all_orders_of_them() -> None:
    left, right = [1.0, 2.0, 2.0], [2.0, 3.0, 4.0, 4.0]
    ranks = midranks([*left, *right])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, 3)]
    expected = sum(sums) / len(sums)
    far = sum(abs(total - expected) >= abs(sum(ranks[:3]) - expected) for total in sums) / len(sums)
    assert math.isclose(mann_whitney(left, right), far)
