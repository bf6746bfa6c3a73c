"""Medians, spread, and whether two sets of samples differ by more than noise."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of the samples of one figure. ``low`` and ``high`` are the quartiles, between which half of them are."""

    count: int
    median: float
    low: float
    high: float
    least: float
    most: float


def summary(values: Sequence[float]) -> Summary:
    low, high = (values[0], values[0])
    if len(values) > 1:
        low, _, high = quantiles(values, n=4, method="inclusive")
    return Summary(
        count=len(values), median=median(values), low=low, high=high, least=min(values), most=max(values)
    )  # fmt: skip


def ratio_interval(values: Sequence[float], of: Sequence[float]) -> tuple[float, float]:
    """The bootstrap interval (95 %) of the ratio of medians; the same for the same samples."""
    source = random.Random(0)  # noqa: S311 - no secret: repeatable
    ratios = sorted(
        median(source.choices(values, k=len(values))) / median(source.choices(of, k=len(of))) for _ in range(RESAMPLES)
    )
    cut = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return ratios[cut], ratios[-cut - 1]


def mann_whitney(left: Sequence[float], right: Sequence[float]) -> float:
    """The two-sided p-value of the Mann-Whitney U test: exact, ties included.

    The chance that samples of the same distribution would have rank sums at least as far from the expected one.
    """
    ranks = midranks([*left, *right])
    counts = subset_sums(ranks, len(left))
    observed, expected = sum(ranks[: len(left)]), len(left) * sum(ranks) / len(ranks)
    far = sum(count for total, count in counts.items() if abs(total - expected) >= abs(observed - expected) - 1e-9)
    return far / sum(counts.values())


def midranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, so that ranks in the middle of equal values are whole numbers."""
    ordered = sorted(values)
    first = {value: index for index, value in reversed(list(enumerate(ordered)))}
    last = {value: index for index, value in enumerate(ordered)}
    return [first[value] + last[value] + 2 for value in values]


def subset_sums(numbers: Sequence[int], size: int) -> dict[int, int]:
    """How many subsets of a size have each sum."""
    found: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for number in numbers:
        for taken in range(size, 0, -1):
            for total, count in found[taken - 1].items():
                found[taken][total + number] = found[taken].get(total + number, 0) + count
    return found[size]
