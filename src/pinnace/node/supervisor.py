"""Processes that must run: started together, restarted with back-off when they die, ended together."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pinnace.sandbox.linux import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
BACK_OFF = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before restart n
STEADY = 60.0  # seconds of life after which a service starts again at the first back-off
NO_PROCESS = {errno.EAGAIN, errno.ENOMEM}  # the user has as many processes as the site allows: pods may have made them
NO_PROCESS_PAUSE = 0.5  # seconds between attempts then
NOT_STARTED = "not started: there is no process to be had"
GIVE_UP = 8  # restarts in a row, about forty seconds, after which a service is beyond help


class BeyondHelpError(Exception):
    """A service without which there is no cluster does not stay up."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A command and the log that its output goes to. Without an ``essential`` one there is no cluster.

    ``output`` makes something else to write to (see ``pacing``).
    """

    name: str
    argv: list[str]
    log: Path
    essential: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    waits_for: Callable[[], bool] = lambda: True
    output: Callable[[Path], int] | None = None
    nice: int = 0


@dataclass(kw_only=True)
class Running:
    """What became of a service."""

    service: Service
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restarts: int = 0
    due: float = 0.0
    last_end: str = ""

    @property
    def state(self) -> str:
        if self.process:
            return "running"
        return "restarting" if self.last_end else "waiting"


class Supervisor:
    """Keeps services running. ``tick`` is called often; ``reaped`` for every child that ended."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.services: list[Running] = []
        self._changed = changed

    def add(self, service: Service) -> None:
        self.services.append(Running(service=service))

    def tick(self) -> None:
        """Start what is due."""
        for running in self.services:
            if running.process is None and time.monotonic() >= running.due and running.service.waits_for():
                self._start(running)

    def _start(self, running: Running) -> None:
        service = running.service

        def prepare() -> None:
            die_with_parent(signal.SIGKILL)
            os.nice(service.nice)

        output = -1
        try:
            output = service.output(service.log) if service.output else os.open(service.log, APPEND, 0o600)
            running.process = subprocess.Popen(
                service.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | service.environment,
                preexec_fn=prepare,  # noqa: PLW1509 - there are no threads
            )
        except OSError as error:
            if error.errno not in NO_PROCESS:
                raise
            running.due = time.monotonic() + NO_PROCESS_PAUSE  # that is not the service's fault, and not counted
            if running.last_end != NOT_STARTED:
                running.last_end = NOT_STARTED
                self._changed()
            return
        finally:
            if output >= 0:
                os.close(output)
        running.started = time.monotonic()
        self._changed()

    def reaped(self, pid: int, status: int) -> Running | None:
        """Note the end of a child; gives the service, if it was one. Raises if there is no use in going on."""
        for running in self.services:
            if running.process and running.process.pid == pid:
                running.process.returncode = os.waitstatus_to_exitcode(status)
                running.last_end = describe_end(running.process.returncode)
                lived = time.monotonic() - running.started
                running.restarts = 1 if lived > STEADY else running.restarts + 1
                running.due = time.monotonic() + BACK_OFF[min(running.restarts, len(BACK_OFF)) - 1]
                running.process = None
                self._changed()
                if running.service.essential and running.restarts > GIVE_UP:
                    raise BeyondHelpError(
                        f"{running.service.name} does not stay up: {running.restarts} ends in a row, "
                        f"the last with {running.last_end}\n{last_line(running.service.log)}"
                    )
                return running
        return None

    def stop(self, *names: str) -> None:
        """End services for good."""
        for running in [running for running in self.services if running.service.name in names]:
            self.services.remove(running)
            if running.process:
                running.process.terminate()

    def release(self, name: str) -> int | None:
        """Keep a service no longer, and leave it as it is. Gives its pid, if it runs."""
        [running] = [running for running in self.services if running.service.name == name]
        self.services.remove(running)
        return running.process.pid if running.process else None

    def report(self) -> list[dict[str, object]]:
        return [
            {
                "name": running.service.name,
                "state": running.state,
                "pid": running.process.pid if running.process else None,
                "restarts": running.restarts,
                "last_end": running.last_end,
            }
            for running in self.services
        ]


def last_line(log: Path) -> str:
    """What a service said last."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def describe_end(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
