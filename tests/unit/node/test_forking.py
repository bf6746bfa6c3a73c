"""Signals of Slurm, while something is made that has to be removed."""

from __future__ import annotations

import subprocess
import sys

MAKE = """
import os, signal
from pinnace.node.agent import leave_on_signals
from pinnace.node.forking import blocked_signals
leave_on_signals()
made = "nothing"
try:
    with blocked_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        made = "a directory"
    made = "more"
finally:
    print(made)
"""


def test_a_signal_comes_when_what_was_made_can_be_removed() -> None:
    result = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.returncode) == ("a directory\n", 128 + 15), result.stderr
