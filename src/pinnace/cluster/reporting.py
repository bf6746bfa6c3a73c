"""How long operations tell what they do. The command line prints it; nothing in here does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class ReportedStep(Protocol):
    """A step that is under way. ``text`` says what has been done once it has succeeded."""

    text: str

    def say(self, text: str) -> None:
        """What the step waits for right now."""


class StepReporter(Protocol):
    """Hears of every step of an operation, such as ``run_once``."""

    def step(self, text: str) -> AbstractContextManager[ReportedStep]:
        """Enclose a step: it has succeeded if the context ends without an exception."""


class SilentStep:
    """A step that nobody hears of."""

    def __init__(self, text: str) -> None:
        self.text = text

    def say(self, text: str) -> None:
        """Nothing is said."""


class SilentReporter:
    """For callers who do not ask for progress."""

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[SilentStep]:
        yield SilentStep(text)


SILENT = SilentReporter()
