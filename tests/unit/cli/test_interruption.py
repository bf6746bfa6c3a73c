"""Signals, one after the other, while a command ends what it has begun."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import time
from pinnace.cli.interruption import terminate_on_signals, uninterrupted
terminate_on_signals()
try:
    try:
        print("begun", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    finally:
        print("ending", flush=True)
        time.sleep(1)  # and has not come to the next line
        with uninterrupted():
            print("ended", flush=True)
except SystemExit as error:
    print(error.code, flush=True)
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_cut_short_what_the_first_has_begun(
    first: signal.Signals, second: signal.Signals
) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.send_signal(first)
        assert process.stdout.readline() == "ending\n"
        process.send_signal(second)
        output, _ = process.communicate(timeout=30)
    assert output.splitlines() == ["ended", *([] if first == signal.SIGINT else [str(128 + first)])]
    assert process.returncode == 0


ONE_OF_SEVERAL = """
import time
from pinnace.cli.interruption import postponed, terminate_on_signals
terminate_on_signals()
try:
    with postponed():
        print("ending", flush=True)
        time.sleep(1)
        print("ended", flush=True)
    print("goes on", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
except SystemExit as error:
    print(error.code, flush=True)
"""


@pytest.mark.parametrize(
    ("signum", "last"), [(None, "goes on"), (signal.SIGINT, "interrupted"), (signal.SIGTERM, "143")]
)
def test_a_signal_while_one_of_several_clusters_ends_is_obeyed_after_that(
    signum: signal.Signals | None, last: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", ONE_OF_SEVERAL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ending\n"
        if signum:
            process.send_signal(signum)
        output, _ = process.communicate(timeout=30)
    assert output.splitlines() == ["ended", last]


FAILED = ONE_OF_SEVERAL.replace('print("ended", flush=True)', 'raise ValueError("does not end")')


def test_a_signal_is_obeyed_also_if_that_cluster_does_not_end() -> None:
    with subprocess.Popen([sys.executable, "-c", FAILED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == ("143\n", 0)
