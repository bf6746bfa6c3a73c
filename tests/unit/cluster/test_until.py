from __future__ import annotations

import pytest

from pinnace.cluster.until import Until, parse_duration, wait_args
from pinnace.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2d", 172800), ("1d2h3m4s", 93784), ("0s", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert Until.parse(text) == Until(seconds=seconds)


@pytest.mark.parametrize("text", ["", "30", "m", "1m1h", "-5m", "1.5h", "soon", "5 m"])
def test_what_is_no_duration(text: str) -> None:
    """A bare number would be minutes for Slurm and seconds for everybody else."""
    with pytest.raises(ValueError, match="no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "resource", "condition"),
    [
        ("deployment/web=Available", "deployment/web", "Available"),
        ("jobs.batch/x=Complete", "jobs.batch/x", "Complete"),
        ("pod/x=Ready=False", "pod/x", "Ready=False"),
    ],
)
def test_conditions_are_those_of_kubectl_wait(text: str, resource: str, condition: str) -> None:
    until = Until.parse(text)
    assert until == Until(resource=resource, condition=condition)
    argv = wait_args(until, "apps")
    assert argv[:3] == ["wait", "--namespace=apps", f"--for=condition={condition}"]
    assert argv[3] == resource


@pytest.mark.parametrize("text", ["deployment/web", "web=Available", "deployment/web=", "/web=Available", "30"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Until.parse(text)
    assert text in caught.value.message
    assert "deployment/web=Available" in caught.value.hint
