"""What is called a change between two runs, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinnace.bench.compare import Verdict, as_json, cells, compare, differences
from pinnace.bench.measurements import Model
from support.bench_samples import run_at, samples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SIX = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]


def verdict(before: Sequence[float], after: Sequence[float], figure: str = "cpu") -> Verdict:
    found = compare(samples({(figure, Model.OVER): before}), samples({(figure, Model.OVER): after}))
    return found[0].verdict


def test_a_clear_difference_is_a_change_in_the_direction_that_matters() -> None:
    lower = [value * 0.9 for value in SIX]
    assert verdict(SIX, lower) is Verdict.WORSE
    assert verdict(lower, SIX) is Verdict.BETTER
    assert verdict(SIX, lower, "startup") is Verdict.BETTER


def test_noise_is_not() -> None:
    assert verdict(SIX, list(reversed(SIX))) is Verdict.NOISE
    assert verdict(SIX, [90.0, 110.0, 99.0, 101.0, 95.0, 105.0]) is Verdict.NOISE
    assert verdict(SIX, [value * 1.02 for value in SIX[:3]] + SIX[3:]) is Verdict.NOISE


def test_less_than_a_percent_is_not_called_a_change() -> None:
    tight = [100 + number / 1000 for number in range(8)]
    assert verdict(tight, [value * 1.005 for value in tight]) is Verdict.NOISE


def test_too_few_samples_and_missing_ones_are_told() -> None:
    assert verdict(SIX[:4], [value * 2 for value in SIX[:4]]) is Verdict.TOO_FEW
    before, after = samples({("cpu", Model.OVER): SIX}), samples({("cpu", Model.PODS): SIX})
    assert {found.verdict for found in compare(before, after)} == {Verdict.ONLY_A, Verdict.ONLY_B}
    assert len(cells(compare(before, after))) == 3


def test_json_has_ratio_interval_and_p() -> None:
    [found] = as_json(compare(samples({("cpu", Model.OVER): SIX}), samples({("cpu", Model.OVER): SIX})))
    assert (found["figure"], found["ratio"], found["p"]) == ("cpu", 1.0, 1.0)


def test_another_machine_or_version_is_told(tmp_path: Path) -> None:
    before, after = run_at(tmp_path / "a"), run_at(tmp_path / "b")
    assert differences(before, after) == []
    after.update(versions={"pinnace": "2", "Slurm": "24.11"})
    assert differences(before, after) == ["Slurm: none → 24.11", "pinnace: 1<2 → 2"]
