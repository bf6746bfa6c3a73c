"""Supervision, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pinnace.errors import NodeError
from pinnace.node import messages
from pinnace.node.supervisor import (
    MAX_RESTARTS,
    Command,
    Function,
    RestartPolicy,
    Service,
    Supervisor,
)
from pinnace.spec import ServiceRecord, ServiceState
from pinnace.timeline.marks import parse_marks
from pinnace.timeline.recorder import MarkEvent, Recorder
from testbed.waiting import wait_until


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.node.supervisor.BACK_OFF", (0.0,))


def supervised(*found: Service) -> Supervisor:
    supervisor = Supervisor(lambda: None)
    for service in found:
        supervisor.add(service)
    return supervisor


def live_through(supervisor: Supervisor, ends: int) -> None:
    """Start what is due, and wait for so many ends."""
    for _ in range(ends):
        supervisor.tick()
        running = supervisor.services[0].child
        assert running
        _, status = os.waitpid(running.pid, 0)
        supervisor.reaped(running.pid, status)


def test_a_service_that_ends_is_started_again_and_its_end_is_reported(tmp_path: Path) -> None:
    supervisor = supervised(Service(name="short", run=Command(argv=["sh", "-c", "exit 3"], log=tmp_path / "short.log")))
    live_through(supervisor, ends=2)
    assert supervisor.report() == (
        ServiceRecord(name="short", state=ServiceState.RESTARTING, restarts=2, last_end="exit code 3"),
    )


def test_a_service_that_is_killed_on_purpose_is_started_again(tmp_path: Path) -> None:
    supervisor = supervised(Service(name="long", run=Command(argv=["sleep", "600"], log=tmp_path / "long.log")))
    supervisor.tick()
    supervisor.restart("long")
    supervisor.restart("unknown")
    live_through(supervisor, ends=1)
    (record,) = supervisor.report()
    assert (record.state, record.restarts, record.last_end) == (ServiceState.RESTARTING, 1, "killed by SIGKILL")


def test_an_ordinary_service_is_never_given_up(tmp_path: Path) -> None:
    supervisor = supervised(Service(name="short", run=Command(argv=["false"], log=tmp_path / "short.log")))
    live_through(supervisor, ends=MAX_RESTARTS + 2)


def test_an_essential_service_that_does_not_stay_up_is_the_end_and_says_why(tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo the disk is full; exit 4"]
    supervisor = supervised(Service(name="etcd", run=Command(argv=argv, log=tmp_path / "etcd.log"), essential=True))
    live_through(supervisor, ends=MAX_RESTARTS)
    with pytest.raises(NodeError, match=r"(?s)etcd does not stay up: 9 ends.* exit code 4\nthe disk is full"):
        live_through(supervisor, ends=1)


def test_an_essential_service_that_was_up_for_long_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinnace.node.supervisor.STABLE_AFTER", -1.0)
    supervisor = supervised(
        Service(name="etcd", run=Command(argv=["false"], log=tmp_path / "etcd.log"), essential=True)
    )
    live_through(supervisor, ends=MAX_RESTARTS + 2)
    assert supervisor.services[0].restarts == 1


def test_a_service_starts_when_what_it_waits_for_is_there(tmp_path: Path) -> None:
    there = tmp_path / "there"
    supervisor = supervised(
        Service(name="late", run=Command(argv=["true"], log=tmp_path / "late.log"), waits_for=there.exists)
    )
    supervisor.tick()
    assert supervisor.report()[0].state is ServiceState.WAITING
    there.touch()
    live_through(supervisor, ends=1)


def test_a_service_with_a_listener_is_started_by_a_connection_and_ends_when_nobody_wants_it() -> None:
    """Its end is none that counts as one, and the next connection starts it again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_one(_channel: messages.Channel) -> None:
            connection, _ = listener.accept()
            connection.sendall(b"here")

        supervisor = supervised(Service(name="rare", run=Function(work=answer_one), listener=listener))
        for _ in range(2):
            supervisor.tick()
            assert supervisor.report() == (ServiceRecord(name="rare", state=ServiceState.IDLE),)
            assert (supervisor.listeners(), supervisor.next_tick()) == ([listener], None)
            with socket.create_connection(listener.getsockname()) as client:
                supervisor.tick()
                assert supervisor.report()[0].state is ServiceState.RUNNING
                assert supervisor.listeners() == []
                assert client.recv(4) == b"here"
            ended(supervisor)


def test_a_service_with_a_listener_that_fails_is_started_again_without_a_connection() -> None:
    codes = [5, 0]
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        run = Function(work=lambda _channel: os._exit(codes[supervisor.services[0].restarts]))
        supervisor = supervised(Service(name="rare", run=run, listener=listener))
        live_through(supervisor, ends=1)
        (record,) = supervisor.report()
        assert (record.state, record.last_end, record.restarts) == (ServiceState.RESTARTING, "exit code 5", 1)
        assert supervisor.listeners() == [], "nobody is woken for it before"
        listener.accept()[0].close()
        live_through(supervisor, ends=1)
        assert supervisor.report()[0].state is ServiceState.IDLE


def test_a_service_that_is_stopped_stays_so(tmp_path: Path) -> None:
    supervisor = supervised(Service(name="long", run=Command(argv=["sleep", "60"], log=tmp_path / "long.log")))
    supervisor.tick()
    child = supervisor.services[0].child
    assert child
    assert child.process
    process = child.process
    supervisor.stop("long")
    wait_until("it to end", lambda: process.poll() is not None, limit=60)
    supervisor.tick()
    assert supervisor.report() == ()


def test_a_function_that_is_stopped_stays_so() -> None:
    supervisor = supervised(Service(name="long", run=Function(work=lambda _channel: time.sleep(60))))
    supervisor.tick()
    child = supervisor.services[0].child
    assert child
    wait_until("it to have its name", lambda: Path(f"/proc/{child.pid}/comm").read_text() == "long\n", limit=60)
    supervisor.stop("long")
    assert os.waitpid(child.pid, 0)[1] == signal.SIGKILL
    assert supervisor.report() == ()


def ended(supervisor: Supervisor) -> None:
    """Wait for the end of the only service that runs."""
    child = supervisor.services[0].child
    assert child
    supervisor.reaped(*os.waitpid(child.pid, 0))


def test_a_task_that_fails_is_done_again_until_it_succeeds(tmp_path: Path) -> None:
    def work(_channel: messages.Channel) -> None:
        if not (tmp_path / "tried").exists():
            (tmp_path / "tried").touch()
            os.write(2, b"the first time it fails")
            os._exit(1)

    codes: list[int] = []
    run = Function(work=work, log=tmp_path / "task.log")
    supervisor = supervised(Service(name="task", run=run, restart=RestartPolicy.ON_FAILURE, on_end=codes.append))
    for state in (ServiceState.RESTARTING, ServiceState.DONE):
        supervisor.tick()
        ended(supervisor)
        assert supervisor.report()[0].state is state
    assert codes == [0]
    assert "the first time it fails" in (tmp_path / "task.log").read_text()
    supervisor.tick()
    assert supervisor.next_tick() is None


def test_what_is_done_once_is_not_done_again_though_it_fails() -> None:
    codes: list[int] = []

    def fail(_channel: messages.Channel) -> None:
        os._exit(7)

    run = Function(work=fail)
    supervisor = supervised(Service(name="task", run=run, restart=RestartPolicy.NEVER, on_end=codes.append))
    supervisor.tick()
    ended(supervisor)
    assert (codes, supervisor.report()[0].last_end) == ([7], "exit code 7")


def test_messages_go_both_ways_and_the_last_ones_are_not_lost() -> None:
    def work(channel: messages.Channel) -> None:
        assert channel.receive() == messages.EvictPod()
        channel.send(messages.Stop())
        channel.send(messages.Leave(exit_code=3))

    heard: list[messages.Message] = []
    supervisor = supervised(
        Service(name="pod", run=Function(work=work), restart=RestartPolicy.NEVER, on_message=heard.append)
    )
    assert not supervisor.send("pod", messages.EvictPod())
    supervisor.tick()
    assert supervisor.send("pod", messages.EvictPod())
    ended(supervisor)
    assert heard == [messages.Stop(), messages.Leave(exit_code=3)]
    assert supervisor.channels() == {}


def test_a_process_that_was_forked_before_is_seen_and_its_end_noted() -> None:
    codes: list[int] = []
    supervisor = Supervisor(lambda: None)
    process = subprocess.Popen(["sh", "-c", "exit 4"])
    supervisor.adopt("before", process.pid, codes.append)
    supervisor.tick()
    _, status = os.waitpid(process.pid, 0)
    process.returncode = 4
    supervisor.reaped(process.pid, status)
    assert (codes, supervisor.report()[0].state) == ([4], ServiceState.DONE)


NO_PROCESSES = """
import os, resource, sys, time
from pathlib import Path
from pinnace.node.supervisor import NO_PROCESS_PAUSE, Command, Service, Supervisor
os.setuid(64321)
supervisor = Supervisor(lambda: None)
supervisor.add(Service(name="short", run=Command(argv=["true"], log=Path("/dev/null"))))
resource.setrlimit(resource.RLIMIT_NPROC, (0, 100))
supervisor.tick()
print(supervisor.report()[0].state, supervisor.report()[0].last_end)
resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
time.sleep(NO_PROCESS_PAUSE)
supervisor.tick()
print(supervisor.report()[0].state)
"""


@pytest.mark.bed
def test_a_service_for_which_there_is_no_process_is_started_later() -> None:
    """The limit holds for all processes of a user, also those that pods have made."""
    done = subprocess.run([sys.executable, "-c", NO_PROCESSES], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == [
        "restarting not started: there is no process to be had",
        "running",
    ]


def test_a_process_that_somebody_else_has_waited_for_does_not_keep_the_others_from_their_end(tmp_path: Path) -> None:
    supervisor = supervised(
        Service(name="gone", run=Command(argv=["true"], log=tmp_path / "gone.log")),
        Service(name="there", run=Command(argv=["sleep", "600"], log=tmp_path / "there.log")),
    )
    supervisor.tick()
    gone, there = (running.child for running in supervisor.services)
    assert gone
    assert gone.process
    assert there
    gone.process.wait()
    supervisor.end()
    with pytest.raises(ProcessLookupError):
        os.kill(there.pid, 0)


def test_at_the_end_no_process_is_left(tmp_path: Path) -> None:
    """Slurm would look a second time only a second later."""
    supervisor = supervised(
        Service(name="program", run=Command(argv=["sleep", "600"], log=tmp_path / "program.log")),
        Service(name="function", run=Function(work=lambda _channel: time.sleep(600))),
    )
    supervisor.tick()
    children = [running.child.pid for running in supervisor.services if running.child]
    assert len(children) == 2
    supervisor.end()
    for pid in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    assert supervisor.report() == ()
    supervisor.tick()
    assert supervisor.report() == (), "nothing is started again"


def test_a_process_that_does_not_end_keeps_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in the kernel, which waits for a file server: it is killed, and there all the same."""
    supervisor = supervised(Service(name="stuck", run=Command(argv=["sleep", "60"], log=tmp_path / "stuck.log")))
    supervisor.tick()
    child = supervisor.services[0].child
    assert child
    assert child.process
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda _pid, _signal: None)
        patched.setattr("pinnace.node.supervisor.END_LIMIT", 0.3)
        begin = time.monotonic()
        supervisor.end()
        assert 0.3 <= time.monotonic() - begin < 30
    assert child.process.poll() is None
    child.process.kill()
    child.process.wait()


def test_starts_are_marked_and_the_ends_of_what_ends_for_good(tmp_path: Path) -> None:
    timeline = Recorder()
    supervisor = Supervisor(lambda: None, timeline)
    supervisor.add(Service(name="service", run=Command(argv=["true"], log=tmp_path / "service.log")))
    live_through(supervisor, ends=2)
    supervisor.services.clear()
    run = Command(argv=["true"], log=tmp_path / "task.log")
    supervisor.add(Service(name="task", run=run, restart=RestartPolicy.ON_FAILURE))
    live_through(supervisor, ends=1)
    timeline.save(tmp_path / "marks.jsonl")
    marks = parse_marks((tmp_path / "marks.jsonl").read_text(), "n1")
    assert [(mark.step, mark.event) for mark in marks] == [
        ("service", MarkEvent.BEGIN),
        ("service", MarkEvent.BEGIN),
        ("task", MarkEvent.BEGIN),
        ("task", MarkEvent.END),
    ]
