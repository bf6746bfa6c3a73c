"""The errors that a user of the bed can meet.

    BedError            anything that is said to the user in one message, with a hint what to do next
    ├── UsageError      the request itself is wrong: an unknown host, a daemon that the bed does not have
    ├── PackageError    a Debian package cannot be had
    └── WaitError       something did not come up, or go away, in time

Only ``testbed.cli`` prints them; everything below raises.
"""

from __future__ import annotations

__all__ = ["BedError", "PackageError", "UsageError", "WaitError"]


class BedError(Exception):
    """What happened and why, and in ``hint`` what the user can do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(BedError):
    """The request itself is wrong."""

    exit_code = 2


class PackageError(BedError):
    """A Debian package cannot be had."""


class WaitError(BedError):
    """Something did not come up, or go away, in time."""
