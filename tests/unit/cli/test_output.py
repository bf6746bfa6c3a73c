"""What a workload prints, when nobody reads it any more."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pinnace.cli.run import show_line
for number in range(3):
    show_line("pod/main", f"line {number}")
    print("shown", file=sys.stderr, flush=True)
    if number == 0:
        sys.stdin.readline()
sys.exit(3)
"""


def test_the_exit_code_is_the_workloads_though_nobody_reads_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "[pod/main] line 0\n"
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stderr.read() == "shown\n" * 3
    assert process.returncode == 3
