"""What a fetch tells while it works. The command line shows it; nothing in here prints."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Hears how each component gets on."""

    def step(self, label: str, text: str) -> None:
        """A new stage of work on a component has begun."""

    def progress(self, label: str, text: str) -> None:
        """How far the stage is; comes often, and only a terminal shows it."""

    def done(self, label: str, text: str) -> None:
        """The component is in the store."""

    def note(self, label: str, text: str) -> None:
        """Something that the user should know, and that does not stop the work."""
