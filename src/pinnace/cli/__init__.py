"""The commands. The only place that prints and exits."""

from pinnace.interpreter import leave_working_directory

leave_working_directory()

from pinnace.cli.app import main  # noqa: E402 - what it imports must not come from the working directory

__all__ = ["main"]
