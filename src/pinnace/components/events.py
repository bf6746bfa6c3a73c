"""Progress events of a fetch. The command line shows them; nothing in this package prints."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives the progress of each component."""

    def step(self, label: str, text: str) -> None:
        """A new stage of work on a component has begun."""

    def progress(self, label: str, text: str) -> None:
        """Progress within the stage; frequent, and shown on terminals only."""

    def done(self, label: str, text: str) -> None:
        """The component is in the store."""

    def note(self, label: str, text: str) -> None:
        """A warning for the user; the work goes on."""
