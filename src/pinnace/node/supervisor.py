"""Every process that the agent or init has beside itself: started when what it needs is there, restarted with back-off.

A service is a command, or a function that runs in a forked process and has a channel to its parent (``node.messages``).
All of them are in ``pinnace status``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pinnace.errors import NodeError
from pinnace.node.forking import SLURM_SIGNALS, fork
from pinnace.node.messages import Channel
from pinnace.sandbox.linux import die_with_parent, set_name
from pinnace.spec import ServiceRecord, ServiceState
from pinnace.timeline.recorder import MarkEvent, Recorder

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pinnace.node.messages import Message

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
BACK_OFF = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before restart n
STABLE_AFTER = 60.0  # seconds of life after which a service starts again at the first back-off
NO_PROCESS = {errno.EAGAIN, errno.ENOMEM}  # the user has as many processes as the site allows: pods may have made them
NO_PROCESS_PAUSE = 0.5  # seconds between attempts then
NOT_STARTED = "not started: there is no process to be had"
MAX_RESTARTS = 8  # in a row, about forty seconds, after which an essential service is given up
READINESS_INTERVAL = 0.01  # seconds between looks at what services wait for
END_LIMIT = 5.0  # seconds for services that were killed to end; one that waits for a file server may take for ever
END_INTERVAL = 0.005  # seconds between looks whether they have


class RestartPolicy(StrEnum):
    """As in a pod's ``restartPolicy``."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


@dataclass(kw_only=True)
class Child:
    """A process that was started. A function's has a channel."""

    pid: int
    channel: Channel | None = None
    process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and somebody else has waited for it
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program. ``output`` makes something else than the log to write to (see ``services.kubelet_pacing``)."""

    argv: Sequence[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    output: Callable[[Path], int] | None = None
    nice: int = 0
    ignores_slurm_signals: bool = False

    def start(self, _name: str) -> Child:
        process = self.spawn()
        return Child(pid=process.pid, process=process)

    def spawn(self) -> subprocess.Popen[bytes]:
        output = self.output(self.log) if self.output else os.open(self.log, APPEND, 0o600)
        try:
            return subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                preexec_fn=self._prepare,  # noqa: PLW1509 - there are no threads
            )
        finally:
            os.close(output)

    def _prepare(self) -> None:
        die_with_parent(signal.SIGKILL)
        os.nice(self.nice)
        for number in SLURM_SIGNALS if self.ignores_slurm_signals else ():
            signal.signal(number, signal.SIG_IGN)


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function in a forked process. Its output goes to our own, or to ``log``."""

    work: Callable[[Channel], None]
    log: Path | None = None

    def start(self, name: str) -> Child:
        ours, theirs = Channel.pair()

        def work() -> None:
            set_name(name)
            ours.close()
            if self.log:
                _redirect_output(self.log)
            self.work(theirs)

        try:
            return Child(pid=fork(work), channel=ours)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()


def _redirect_output(log: Path) -> None:
    descriptor = os.open(log, APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class Service:
    """Something that runs. Without an ``essential`` one there is no cluster.

    One with a ``listener`` is started when a connection waits there (socket activation). It accepts connections
    itself, and ends when it has none any more. ``back_off`` are the seconds before restart n. ``on_message`` gets what
    a function sends; ``on_end`` the exit code of one that is not started again.
    """

    name: str
    run: Command | Function
    restart: RestartPolicy = RestartPolicy.ALWAYS
    essential: bool = False
    back_off: Sequence[float] = ()  # BACK_OFF
    waits_for: Callable[[], bool] = lambda: True
    listener: socket.socket | None = None
    on_message: Callable[[Message], None] = lambda _message: None
    on_end: Callable[[int], None] = lambda _code: None


@dataclass(kw_only=True)
class Running:
    """What became of a service."""

    service: Service
    child: Child | None = None
    started: float = 0.0
    restarts: int = 0
    due: float = 0.0
    last_end: str = ""
    done: bool = False

    @property
    def state(self) -> ServiceState:
        if self.child:
            return ServiceState.RUNNING
        if self.done:
            return ServiceState.DONE
        if self.is_idle:
            return ServiceState.IDLE
        return ServiceState.RESTARTING if self.last_end else ServiceState.WAITING

    @property
    def is_stopped(self) -> bool:
        """Whether it does not run, but shall be started, now or later."""
        return self.child is None and not self.done

    @property
    def is_idle(self) -> bool:
        """Whether a connection starts it. One that has failed does not wait for that."""
        return self.is_stopped and self.service.listener is not None and not self.last_end

    @property
    def record(self) -> ServiceRecord:
        return ServiceRecord(
            name=self.service.name,
            state=self.state,
            pid=self.child.pid if self.child else None,
            restarts=self.restarts,
            last_end=self.last_end,
        )


class Supervisor:
    """Keeps services running. ``tick`` is called often; ``reaped`` for every child that ended."""

    def __init__(self, changed: Callable[[], None], timeline: Recorder | None = None) -> None:
        self.services: list[Running] = []
        self._changed = changed
        self._timeline = timeline or Recorder()

    def add(self, service: Service) -> None:
        self.services.append(Running(service=service))

    def adopt(self, name: str, pid: int, on_end: Callable[[int], None]) -> None:
        """The same for a process that was forked before there was a supervisor. It is not started again."""
        service = Service(
            name=name, run=Function(work=lambda _channel: None), restart=RestartPolicy.NEVER, on_end=on_end
        )
        self.services.append(Running(service=service, child=Child(pid=pid), started=time.monotonic()))
        self._timeline.mark(name, MarkEvent.BEGIN)

    def find(self, name: str) -> Running | None:
        return next((running for running in self.services if running.service.name == name), None)

    def tick(self) -> None:
        """Start what is due."""
        for running in list(self.services):
            is_due = running.is_stopped and time.monotonic() >= running.due
            if is_due and (not running.is_idle or _has_connection(running.service)) and running.service.waits_for():
                self._start(running)

    def next_tick(self) -> float | None:
        """Seconds until ``tick`` has to be called again; None if only a connection or a child's end changes that."""
        now = time.monotonic()
        due = [running.due for running in self.services if running.is_stopped and not running.is_idle]
        return max(READINESS_INTERVAL, min(due) - now) if due else None

    def listeners(self) -> list[socket.socket]:
        """Where a connection starts something: with the next ``tick``."""
        return [running.service.listener for running in self.services if running.is_idle and running.service.listener]

    def _start(self, running: Running) -> None:
        begin = time.time()
        try:
            running.child = running.service.run.start(running.service.name)
        except OSError as error:
            if error.errno not in NO_PROCESS:
                raise
            running.due = time.monotonic() + NO_PROCESS_PAUSE  # that is not the service's fault, and not counted
            if running.last_end != NOT_STARTED:
                running.last_end = NOT_STARTED
                self._changed()
            return
        running.started = time.monotonic()
        self._timeline.mark(running.service.name, MarkEvent.BEGIN, at=begin)
        self._changed()

    def channels(self) -> dict[int, Running]:
        """The channels of all functions that run, by their descriptors."""
        return {
            running.child.channel.fileno(): running
            for running in self.services
            if running.child and running.child.channel
        }

    def receive(self, running: Running) -> None:
        """Take what has come over a channel. One whose other end is gone is closed; the process follows."""
        child = running.child
        if child is None or child.channel is None:
            return
        message = child.channel.receive()
        if message is None:
            child.channel.close()
            child.channel = None
        else:
            running.service.on_message(message)

    def send(self, name: str, message: Message, *descriptors: int) -> bool:
        """Send a message, perhaps with descriptors, to a function. Whether it runs and has room for it."""
        running = self.find(name)
        if running is None or running.child is None or running.child.channel is None:
            return False
        return running.child.channel.send(message, *descriptors)

    def reaped(self, pid: int, status: int) -> Running | None:
        """Note the end of a child; gives the service, if it was one. Raises if there is no use in going on."""
        running = next((found for found in self.services if found.child and found.child.pid == pid), None)
        if running is None or running.child is None:
            return None
        code = os.waitstatus_to_exitcode(status)
        if running.child.process:
            running.child.process.returncode = code
        if running.child.channel:
            self._drain(running, running.child.channel)
        running.child, running.last_end = None, describe_end(code)
        policy = running.service.restart
        if policy is RestartPolicy.NEVER or (policy is RestartPolicy.ON_FAILURE and code == 0):
            running.done = True
            self._timeline.mark(running.service.name, MarkEvent.END)
            self._changed()
            running.service.on_end(code)
            return running
        if running.service.listener and code == 0:
            running.last_end = ""
            self._changed()
            return running
        lived = time.monotonic() - running.started
        running.restarts = 1 if lived > STABLE_AFTER else running.restarts + 1
        running.due = time.monotonic() + self._back_off(running)
        self._changed()
        if running.service.essential and running.restarts > MAX_RESTARTS:
            raise NodeError(
                f"{running.service.name} does not stay up: {running.restarts} ends in a row, "
                f"the last with {running.last_end}\n{last_line(running.service.run.log)}"
            )
        return running

    @staticmethod
    def _back_off(running: Running) -> float:
        delays = running.service.back_off or BACK_OFF
        return delays[min(running.restarts, len(delays)) - 1]

    @staticmethod
    def _drain(running: Running, channel: Channel) -> None:
        """What a function sent before it ended still counts."""
        while message := channel.receive(wait=False):
            running.service.on_message(message)
        channel.close()

    def stop(self, *names: str) -> None:
        """End services for good: programs in order, functions at once, since these ignore SIGTERM."""
        for running in [running for running in self.services if running.service.name in names]:
            if isinstance(running.service.run, Function):
                self.kill(running.service.name)
                continue
            self.services.remove(running)
            if running.child:
                os.kill(running.child.pid, signal.SIGTERM)

    def restart(self, name: str) -> None:
        """Kill a service, if it runs. It is started again as after any other end."""
        running = self.find(name)
        if running and running.child:
            running.child.kill()

    def kill(self, *names: str) -> None:
        """End services for good, at once."""
        for running in [running for running in self.services if running.service.name in names]:
            self.services.remove(running)
            if running.child:
                running.child.kill()
            if running.child and running.child.channel:
                running.child.channel.close()

    def end(self) -> None:
        """Kill all services, and wait until they have ended, or END_LIMIT is over.

        Slurm looks at once whether a step whose tasks have ended has processes left, and then only a second later.
        """
        children = [running.child for running in self.services if running.child]
        self.kill(*(running.service.name for running in self.services))
        deadline = time.monotonic() + END_LIMIT
        while (children := [child for child in children if not _has_ended(child)]) and time.monotonic() < deadline:
            time.sleep(END_INTERVAL)

    def release(self, name: str) -> int | None:
        """Keep a service no longer, and leave it as it is. Gives its pid, if it runs."""
        running = self.find(name)
        if running is None:
            return None
        self.services.remove(running)
        return running.child.pid if running.child else None

    def report(self) -> tuple[ServiceRecord, ...]:
        return tuple(running.record for running in self.services)


def _has_connection(service: Service) -> bool:
    """Whether a connection waits to be accepted."""
    poll = select.poll()
    if service.listener:
        poll.register(service.listener, select.POLLIN)
    return bool(poll.poll(0))


def _has_ended(child: Child) -> bool:
    """Whether a child has ended, be it that somebody else has waited for it."""
    try:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
    except ChildProcessError:
        return True
    if pid and child.process:
        child.process.returncode = os.waitstatus_to_exitcode(status)
    return bool(pid)


def last_line(log: Path | None) -> str:
    """What a service said last."""
    lines = log.read_text(errors="replace").strip().splitlines() if log else []
    return lines[-1] if lines else ""


def describe_end(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
