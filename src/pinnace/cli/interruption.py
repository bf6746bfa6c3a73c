"""How a command is interrupted: Ctrl-C, SIGTERM, the end of its terminal. Whatever was begun is ended in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FATAL = (signal.SIGTERM, signal.SIGHUP)
INTERRUPTING = (signal.SIGINT, *FATAL)
SCRIPT_END_LIMIT = 10.0  # seconds that an interrupted script has to end


terminals: list[int] = []  # our streams that are on one; later it may be gone, and cannot be asked any more


def terminate_on_signals() -> None:
    """Let every signal that interrupts unwind the program as Ctrl-C does, so that nothing half-done stays."""
    terminals[:] = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
    _handle(_first)


def _handle(handler: Callable[[int, object], None]) -> None:
    for number in INTERRUPTING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, handler)


def _first(signum: int, _frame: object) -> None:
    """From now on everything ends, and a second signal must not cut that short."""
    _handle(_further)
    _further(signum, None)
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + signum)


def _further(signum: int, _frame: object) -> None:
    if signum == signal.SIGHUP:
        _leave_terminal()


def _leave_terminal() -> None:
    """The terminal is gone: what would be said there must not fail."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in terminals:
        os.dup2(null, descriptor)
    os.close(null)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """While one of several clusters of a command ends: a signal interrupts the command as soon as that is done.

    It does so too if that has failed.
    """
    heard: list[int] = []
    try:
        with uninterrupted(heard):
            yield
    finally:
        if heard:
            signal.raise_signal(heard[0])


@contextlib.contextmanager
def uninterrupted(heard: list[int] | None = None) -> Iterator[None]:
    """While a cluster ends: that is what every signal asks for, and it takes less than half a minute.

    Whoever has more to do than that gives a list for the signals that come meanwhile.
    """

    def hear(signum: int, _frame: object) -> None:
        _further(signum, None)
        if heard is not None:
            heard.append(signum)
        if signum == signal.SIGINT:
            click.echo("the cluster is ending: its pods get their grace period, 20 s at most", err=True)

    before = {number: signal.signal(number, hear) for number in INTERRUPTING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_script(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """With our own signals blocked: what interrupts Popen would leave a script behind of which nobody knows."""

    def hear() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTING)

    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTING)
    try:
        return subprocess.Popen(argv, env=environment, preexec_fn=hear)  # noqa: PLW1509 - there are no threads
    except BaseException:
        hear()
        raise


def run_script(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a script to its end. If we are interrupted, so is it, and gets the time to clean up."""
    with _start_script(argv, environment) as process:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTING)
            return process.wait()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):  # that one has the terminal sent to both of us
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(SCRIPT_END_LIMIT)
            process.kill()
            raise
