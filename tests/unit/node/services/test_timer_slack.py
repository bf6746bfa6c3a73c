"""The timers of an idle control plane: with real processes, below an init of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pinnace.node.processes import TICKS
from pinnace.node.services.timer_slack import IDLE_SLACK, USUAL_SLACK, slack_for

NODE = f"""
import os, signal, sys, time
from pathlib import Path
from pinnace.node.services import timer_slack
from pinnace.sandbox.linux import set_name

def component():
    work = []
    signal.signal(signal.SIGUSR1, lambda *_: work.append(True))
    set_name("kube-controller-manager")
    while not work:
        time.sleep(0.05)
    while True:
        pass

def forked(work):
    pid = os.fork()
    if pid == 0:
        work()
    return pid

def wait_for_slack(pid, wanted):
    deadline = time.monotonic() + 30
    while (found := int(Path(f"/proc/{{pid}}/timerslack_ns").read_text())) != wanted:
        if time.monotonic() > deadline:
            sys.exit(f"{{found}} is not {{wanted}}")
        time.sleep(0.05)

other = forked(lambda: time.sleep(100))
pid = forked(component)
forked(lambda: timer_slack.serve(0.3))
wait_for_slack(pid, {IDLE_SLACK})
os.kill(pid, signal.SIGUSR1)
wait_for_slack(pid, {USUAL_SLACK})
wait_for_slack(other, {USUAL_SLACK})
print("as it should be")
"""


def test_a_component_has_slack_while_it_is_idle() -> None:
    argv = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", NODE]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("as it should be\n", "")


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({}, {}, IDLE_SLACK),
        ({7: 900}, {7: 900 + TICKS // 50}, IDLE_SLACK),
        ({7: 900, 8: 5}, {7: 900 + TICKS // 5, 8: 5 + TICKS // 5}, USUAL_SLACK),
        ({7: 900}, {7: 900, 9: 0}, USUAL_SLACK),  # was started meanwhile
        ({7: 900, 8: 900}, {8: 900}, IDLE_SLACK),  # one has ended
    ],
)
def test_it_depends_on_what_all_of_them_have_used(before: dict[int, int], after: dict[int, int], wanted: int) -> None:
    assert slack_for(before, after, seconds=1.0) == wanted
