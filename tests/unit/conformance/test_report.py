"""What is read from the suite's JUnit files, and what the user is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.expected import EXPECTED
from conformance.report import Outcome, Result, exit_code, read_results, reason_line, table

if TYPE_CHECKING:
    from pathlib import Path

RESIZE = next(iter(EXPECTED))
# As the suite writes it, with the failures cut short.
JUNIT = f"""<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="7592" disabled="7564" errors="0" failures="2" time="157.9">
  <testsuite name="Kubernetes e2e suite" package="/suite" tests="7592">
    <properties><property name="SuiteSucceeded" value="false"></property></properties>
    <testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="0.5"></testcase>
    <testcase name="[It] [sig-node] Pods should work [Conformance]" classname="Kubernetes e2e suite" status="passed"
      time="12.3"></testcase>
    <testcase name="[It] [sig-node] Pods was not asked for" classname="Kubernetes e2e suite" status="skipped" time="0">
      <skipped message="skipped"></skipped></testcase>
    <testcase name="[It] [sig-node] Pods needs more [Conformance]" classname="Kubernetes e2e suite" status="skipped"
      time="0.1"><skipped message="skipped - Requires at least 3 nodes (not 2)"></skipped></testcase>
    <testcase name="[It] [sig-node] {RESIZE} changes [Conformance]" classname="Kubernetes e2e suite" status="failed"
      time="60"><failure message="" type="failed">[FAILED] no such file
In [It] at: k8s.io/kubernetes/test/e2e/common/node/pod_resize.go:1 @ 11/16/26 00:00:00.0
</failure></testcase>
    <testcase name="[It] [sig-network] Services should fail [Conformance]" classname="Kubernetes e2e suite"
      status="failed" time="300"><failure message="" type="failed">[FAILED] expected
    1 to equal 2
In [It] at: k8s.io/kubernetes/test/e2e/network/service.go:1 @ 11/16/26 00:00:00.0
</failure></testcase>
    <testcase name="[It] [sig-network] Services should panic [Conformance]" classname="Kubernetes e2e suite"
      status="panicked" time="1"><error message="" type="panicked">[PANICKED] Test Panicked
In [It] at: runtime/panic.go:1 @ 11/16/26 00:00:00.0
</error></testcase>
  </testsuite>
</testsuites>
"""


@pytest.fixture
def results(tmp_path: Path) -> list[Result]:
    (tmp_path / "junit.xml").write_text(JUNIT)
    return list(read_results(tmp_path / "junit.xml"))


def test_every_chosen_test_has_its_outcome(results: list[Result]) -> None:
    assert [(result.outcome, result.reason) for result in results] == [
        (Outcome.PASSED, ""),
        (Outcome.SKIPPED, "skipped - Requires at least 3 nodes (not 2)"),
        (Outcome.EXPECTED, f"{EXPECTED[RESIZE]} ([FAILED] no such file)"),
        (Outcome.FAILED, "[FAILED] expected 1 to equal 2"),
        (Outcome.FAILED, "[PANICKED] Test Panicked"),
    ]


def test_the_table_names_what_did_not_pass_and_counts_the_rest(results: list[Result]) -> None:
    text = table(results)
    assert text.splitlines()[-1] == "5 tests: 1 passed, 2 failed, 1 failed as expected, 1 skipped"
    assert "[sig-network] Services should fail [Conformance]  (300 s)\n      [FAILED] expected 1 to equal 2" in text
    assert "should work" not in text


def test_the_exit_code_is_about_what_must_pass(results: list[Result]) -> None:
    assert exit_code(results) == 1
    assert exit_code([result for result in results if result.outcome is not Outcome.FAILED]) == 0
    assert exit_code([]) == 1, "a run without a single test has shown nothing"


def test_a_long_reason_is_cut() -> None:
    assert reason_line("word " * 1000).endswith("…")
