"""Interrupted by the user, by a signal, by the end of the terminal or of the job's time: in order, and nothing left."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest

from e2e.left import assert_nothing_left
from e2e.test_run import job
from e2e.test_waiting import busy
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess

    from e2e.conftest import User

pytestmark = pytest.mark.bed

GENTLE = job("trap 'echo got TERM; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
HANG_UP = """
import os, pty
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("pinnace", ["pinnace", "run", "--image", "busybox.tar", "gentle.yaml"])
seen = b""
while b"] ready" not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def has_begun(user: User) -> bool:
    """Whether the head of a cluster has said where it is."""
    return any(user.home.glob(".local/share/pinnace/clusters/*/nodes/0.json"))


def finish(process: subprocess.Popen[str], before: str = "") -> str:
    _, messages = process.communicate(timeout=120)
    messages = before + messages
    assert "Traceback" not in messages, messages
    return messages


@pytest.mark.parametrize(("command", "number"), [("run", signal.SIGINT), ("up", signal.SIGTERM)])
def test_interrupted_while_its_job_waits(bob: User, command: str, number: signal.Signals) -> None:
    script = [bob.write("nothing.sh", "#!/bin/sh\n", 0o755)] if command == "run" else []
    with busy(bob, "n3"), bob.bed.popen(["pinnace", command, "-w", "n3", *script], user="bob") as process:
        assert process.stderr
        said = ""
        while "is pending" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(number)
        finish(process, said)
        assert process.returncode == 128 + number
        assert not bob.pinnace("list", "-o", "name").stdout
    assert_nothing_left(bob)


@pytest.mark.parametrize(("command", "number"), [("run", signal.SIGTERM), ("up", signal.SIGINT)])
def test_interrupted_while_it_starts(bob: User, command: str, number: signal.Signals) -> None:
    script = [bob.write("nothing.sh", "#!/bin/sh\n", 0o755)] if command == "run" else []
    with bob.bed.popen(["pinnace", command, "-N", "2", *script], user="bob") as process:
        wait_until("the cluster to begin", lambda: has_begun(bob), limit=60)
        process.send_signal(number)
        finish(process)
    assert process.returncode == 128 + number
    assert not bob.pinnace("list", "-o", "name").stdout
    assert_nothing_left(bob)


def test_interrupted_while_the_workload_runs_and_again_while_it_ends(bob: User) -> None:
    name = bob.write("gentle.yaml", GENTLE)
    with bob.bed.popen(["pinnace", "run", "--image", "busybox.tar", name], user="bob") as process:
        assert process.stdout
        assert process.stderr
        if "ready" not in process.stdout.readline():
            pytest.fail(process.stderr.read())
        process.send_signal(signal.SIGINT)
        said = ""
        while "interrupted" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        output, messages = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, messages
    assert "got TERM" in output
    assert "Traceback" not in messages, messages
    assert_nothing_left(bob)


def test_a_terminal_that_goes_away_takes_the_cluster_along(bob: User) -> None:
    bob.write("gentle.yaml", GENTLE)
    result = bob.run("/usr/bin/python3", "-c", HANG_UP)
    assert result.stdout.strip() == str(128 + signal.SIGHUP)
    assert not bob.pinnace("list", "-o", "name").stdout
    assert_nothing_left(bob)


def test_a_script_that_is_interrupted_may_clean_up(bob: User) -> None:
    script = "#!/bin/sh\ntrap 'echo cleaning up; exit 3' TERM\necho ready\nwhile :; do sleep 0.1; done\n"
    name = bob.write("cleans.sh", script, 0o755)
    with bob.bed.popen(["pinnace", "run", name], user="bob") as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        output, messages = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, messages
    assert output == "cleaning up\n"
    assert_nothing_left(bob)


@pytest.mark.timeout(400)
def test_the_time_limit_ends_a_workload_in_order_and_a_start_that_is_too_slow(bob: User) -> None:
    """Both at once, because Slurm's shortest limit is a minute, in which a busy machine may not start a workload: the
    first has two. The second start never ends: a kubelet is stopped.
    """
    name = bob.write("gentle.yaml", GENTLE)
    run = ["pinnace", "run", "--image", "busybox.tar"]
    with (
        bob.bed.popen([*run, "-t", "2", "-w", "n1", name], user="bob") as works,
        bob.bed.popen([*run, "-t", "0:10", "-N", "2", "-w", "n2,n3", name], user="bob") as starts,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(starts.kill)
        stack.callback(works.kill)
        stop = "until pkill -STOP -u bob -x kubelet; do sleep 0.02; done"
        bob.bed.run(["sh", "-c", stop], user="root", on="n3", timeout=60)
        output, messages = works.communicate(timeout=240)
        assert "got TERM" in output, messages
        assert "the time limit (2:00) ended the cluster\n" in messages
        assert works.returncode == 1
        messages = finish(starts)
        assert "the time limit (1:00) ended the cluster before it was ready" in messages
        assert "Give it more time with -t." in messages
        assert starts.returncode == 1
    assert_nothing_left(bob)
