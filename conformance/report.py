"""What the suite found, read from the JUnit files that it writes, and shown as a table."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from conformance.expected import reason_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

NOT_CHOSEN = "skipped"  # ginkgo's whole message for a test that nobody asked for
WHERE = re.compile(r"^\s*(In \[|at:|There were |\[\S+\] in |goroutine )")
WIDTH = 200


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED = "failed as expected"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One test that was to be run."""

    name: str
    outcome: Outcome
    seconds: float
    reason: str = ""


def read_results(path: Path) -> Iterator[Result]:
    """The tests of a JUnit file, without those that were not chosen and without the suite's own steps."""
    for case in ET.parse(path).getroot().iter("testcase"):  # noqa: S314 - our own suite wrote it
        name = case.get("name", "")
        skipped = case.find("skipped")
        if not name.startswith("[It] ") or (skipped is not None and skipped.get("message") == NOT_CHOSEN):
            continue
        yield read_case(name.removeprefix("[It] "), case)


def read_case(name: str, case: ET.Element) -> Result:
    seconds = float(case.get("time") or 0)
    if (skipped := case.find("skipped")) is not None:
        return Result(name=name, outcome=Outcome.SKIPPED, seconds=seconds, reason=skipped.get("message", ""))
    wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
    if wrong is None:
        return Result(name=name, outcome=Outcome.PASSED, seconds=seconds)
    said = reason_line(wrong.text or wrong.get("message") or "")
    if known := reason_for(name):
        return Result(name=name, outcome=Outcome.EXPECTED, seconds=seconds, reason=f"{known} ({said})")
    return Result(name=name, outcome=Outcome.FAILED, seconds=seconds, reason=said)


def reason_line(text: str) -> str:
    """The message of a failure in one line: what stands before the place in the source where it happened."""
    lines = []
    for line in text.strip().splitlines():
        if WHERE.match(line):
            break
        lines.append(line.strip())
    joined = " ".join(line for line in lines if line)
    return joined if len(joined) <= WIDTH else f"{joined[:WIDTH]}…"


def table(results: Iterable[Result]) -> str:
    """All that did not pass, each with its reason, and the numbers."""
    results = list(results)
    lines = []
    for outcome in (Outcome.SKIPPED, Outcome.EXPECTED, Outcome.FAILED):
        chosen = sorted((result for result in results if result.outcome is outcome), key=lambda result: result.name)
        lines += [f"{outcome}:"] if chosen else []
        for result in chosen:
            lines += [f"  {result.name}  ({result.seconds:.0f} s)", f"      {result.reason}"]
    counts = Counter(result.outcome for result in results)
    numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome)
    return "\n".join([*lines, f"{len(results)} tests: {numbers}"])


def exit_code(results: Iterable[Result]) -> int:
    """0 if something ran and nothing failed but what cannot pass."""
    outcomes = {result.outcome for result in results}
    return 0 if Outcome.PASSED in outcomes and Outcome.FAILED not in outcomes else 1
